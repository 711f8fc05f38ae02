// Limits the memory that a lane holds for a peer that does not read or acknowledge.
#include <utility>

#include "ferry/transfer/engine/lane_engine.h"
#include "ferry/transfer/engine/lane_limits.h"

// Two honest sides must never both wait for the other to read. So a lane bounds its control frames
// without pausing: at most one acknowledgement, ping and pong at a time, and few refusals with
// text; a further refusal costs one byte, and there are at most as many as the peer can have frames
// in flight. A lane pauses for answers to reads only beyond the number of requests that a peer of
// this release makes.
namespace ferry::transfer {
namespace {

constexpr std::uint64_t kChargeStep = 4 * kKiB;
// Free frames kept for reuse: the limit at any time, and the limit after a heartbeat has found them
// unused.
constexpr std::size_t kMaxFreeFrames = 256;
constexpr std::size_t kFreeFramesAtRest = 16;
// Capacity that the buffers of a free frame, and of a lane between two payloads, may keep.
constexpr std::size_t kSmallMeta = 512;
constexpr std::size_t kSmallList = 256;
// Frames that wait for an earlier copy. Further ones wait in the socket: copies end whatever the
// peer does.
constexpr std::size_t kMaxLandingFrames = 1024;

template <class T>
void FreeIfOver(std::size_t most, std::vector<T>* list) {
  if (list->capacity() > most) std::vector<T>().swap(*list);
}

}  // namespace

// ---- counting -----------------------------------------------------------------------------------

// The connection's counters are shared by all lanes, so they are changed in steps of kChargeStep.
void LaneEngine::Hold(std::uint64_t bytes) {
  held_ += bytes;
  if (held_ <= charged_) return;
  const std::uint64_t more = (held_ - charged_ + kChargeStep - 1) / kChargeStep * kChargeStep;
  context_.memory->Add(more);
  charged_ += more;
}

// Keeps one step in reserve, so that a lane at the edge of a step does not charge and return it for
// every frame.
void LaneEngine::LetGo(std::uint64_t bytes) {
  held_ -= bytes;
  const std::uint64_t spare = charged_ - held_;
  if (spare < 3 * kChargeStep) return;
  const std::uint64_t back = (spare / kChargeStep - 1) * kChargeStep;
  context_.memory->Remove(back);
  charged_ -= back;
}

void LaneEngine::HoldFrame(Frame* frame, std::uint64_t bytes) {
  frame->held = bytes;
  Hold(bytes);
}

// Accounts for the capacity of the vectors that the frame being received uses.
void LaneEngine::HoldScratch() {
  if (closed_) return;
  if (incoming_ == Incoming::kNothing || incoming_ == Incoming::kDropped) {
    FreeIfOver(kSmallList, &pieces_);
    FreeIfOver(kSmallList, &incoming_blocks_);
  }
  const std::uint64_t now = pieces_.capacity() * sizeof(iovec) +
                            incoming_blocks_.capacity() * sizeof(Block) +
                            incoming_data_.capacity() + refusals_.bytes();
  const std::uint64_t before = std::exchange(scratch_bytes_, now);
  if (now > before) Hold(now - before);
  if (now < before) LetGo(before - now);
}

// ---- answers to reads ---------------------------------------------------------------------------

// Upper bound of the cost of answers that a peer of this release can have requested and not
// acknowledged.
std::uint64_t LaneEngine::GuaranteedAnswers() const {
  return AskBudget(context_.lanes) + AnswerCost(wire::kMaxBlocksPerRead) +
         (kMaxReplies + 16) * kRecordBytes;
}

// Returns nullopt if the answer must wait, and true if its cost was taken from the optional memory
// (held_memory.h).
std::optional<bool> LaneEngine::ReserveAnswer(std::uint64_t bytes) {
  if (replies_ + outbox_.size() >= 4 * kMaxReplies) return std::nullopt;
  if (answer_bytes_ + bytes <= GuaranteedAnswers()) return false;
  // The rest of the guarantee is reserved for messages.
  HeldMemory& memory = *context_.memory;
  if (!memory.full() && memory.TryAdd(bytes)) return true;
  return std::nullopt;
}

// The cost is returned when the frame is recycled. `tried`: ReserveAnswer took it from the optional
// memory.
void LaneEngine::HoldAnswer(Frame* frame, std::uint64_t bytes, bool tried) {
  frame->answer = true;
  frame->tried = tried;
  answer_bytes_ += bytes;
  frame->held = bytes;
  if (!tried) Hold(bytes);
}

void LaneEngine::AddReplyRecord(Unacked record) {
  unacked_.push_back(std::move(record));
  ++replies_;
  answer_bytes_ += kRecordBytes;
  Hold(kRecordBytes);
}

void LaneEngine::DropReplyRecord() {
  --replies_;
  answer_bytes_ -= kRecordBytes;
  LetGo(kRecordBytes);
}

bool LaneEngine::MayAskForMore() const {
  // The peer keeps a record of each answer until we acknowledge it. Our acknowledgement must wait
  // for unsent refusals and for copies to GPU memory: with more requests the peer would pause
  // before the frame that frees it.
  return !refusals_.has_unsaid() && reading_.size() + landings_.size() < kMaxReplies &&
         asked_cost_ < AskBudget(context_.lanes);
}

// Whether the offered frame must wait. Not needed while fewer refusals are unsent than the peer can
// have frames in flight.
bool LaneEngine::MustPause() {
  if (landings_.size() >= kMaxLandingFrames) {
    waits_for_copies_ = true;
    return true;
  }
  if (refusals_.UnsaidSpan(finished_) < 2 * MaxSequenced()) return false;
  paused_ = true;
  return true;
}

// ---- frames -------------------------------------------------------------------------------------

// Returns everything that the frame holds. Idempotent; the frame's buffers are kept only up to a
// small size.
void LaneEngine::Recycle(Frame* frame) {
  if (!std::exchange(frame->used, false)) return;
  const std::uint64_t held = std::exchange(frame->held, 0);
  if (std::exchange(frame->kept, false)) {
    --kept_;
    kept_bytes_ -= held;
  }
  if (std::exchange(frame->answer, false)) answer_bytes_ -= held;
  if (std::exchange(frame->tried, false)) {
    context_.memory->RemoveTried(held);
  } else if (held > 0) {
    LetGo(held);
  }
  if (free_frames_.size() >= kMaxFreeFrames) return Delete(frame);
  FreeIfOver(kSmallMeta, &frame->meta);
  FreeIfOver(kSmallList, &frame->payload);
  free_frames_.push_back(frame);
}

// Constant time: the last frame takes the freed index.
void LaneEngine::Delete(Frame* frame) {
  const std::size_t place = frame->place;
  frames_.back()->place = place;
  std::swap(frames_[place], frames_.back());
  frames_.pop_back();
}

// Halves the free frames at each call, so that memory of a burst is returned within a few
// heartbeats.
void LaneEngine::TrimFrames() {
  const std::size_t rest = std::max(kFreeFramesAtRest, free_frames_.size() / 2);
  while (free_frames_.size() > rest) {
    Delete(free_frames_.back());
    free_frames_.pop_back();
  }
  if (frames_.capacity() > 4 * std::max(frames_.size(), kFreeFramesAtRest)) frames_.shrink_to_fit();
  if (free_frames_.capacity() > 4 * kFreeFramesAtRest) free_frames_.shrink_to_fit();
}

// Called when the lane is closed.
void LaneEngine::DropHeld() {
  for (const auto& frame : frames_) {
    if (frame->tried) context_.memory->RemoveTried(frame->held);
  }
  std::vector<Frame*>().swap(free_frames_);
  std::vector<std::unique_ptr<Frame>>().swap(frames_);
  refusals_.Clear();
  context_.memory->Remove(std::exchange(charged_, 0));
  held_ = answer_bytes_ = kept_bytes_ = scratch_bytes_ = 0;
}

void LaneEngine::Free() {
  std::vector<iovec>().swap(pieces_);
  std::vector<Block>().swap(incoming_blocks_);
  std::vector<std::byte>().swap(incoming_data_);
  const std::lock_guard lock(lane_mutex_);
  if (!lane_) return;
  bytes_before_ += lane_->BytesReceived();
  lane_.reset();
}

// ---- frames without acknowledgement -------------------------------------------------------------

// Types of which at most one frame is queued at a time; null for all others.
bool* LaneEngine::QueuedFlag(wire::Type type) {
  switch (type) {
    case wire::Type::kAck: return &ack_queued_;
    case wire::Type::kPing: return &ping_queued_;
    case wire::Type::kPong: return &pong_queued_;
    default: return nullptr;
  }
}

// Sends what was merged into the frame while it was queued.
void LaneEngine::OnPlainSent(wire::Type type) {
  --plain_;
  if (bool* const queued = QueuedFlag(type)) *queued = false;
  switch (type) {
    case wire::Type::kAck:
      if (std::exchange(ack_due_, false)) SendAck();
      break;
    case wire::Type::kPong:
      if (std::exchange(pong_due_, false)) SendPlain(wire::Type::kPong, 0, {});
      break;
    case wire::Type::kNack:
      --nacks_queued_;
      SayPendingNacks();
      break;
    default: break;
  }
}

}  // namespace ferry::transfer
