// Completes the headers of frames and sends control frames.
#include "ferry/transfer/lane/frames/frame_sender.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/core/crc32c.h"
#include "ferry/core/trace.h"
#include "ferry/core/units.h"
#include "ferry/core/unordered_access.h"
#include "ferry/transfer/handshake/wire.h"
#include "ferry/transfer/lane/lane_site.h"

namespace ferry::transfer {

// ---- RefusalLog ---------------------------------------------------------------------------------

namespace {

bool IsBefore(std::uint32_t a, std::uint32_t b) { return static_cast<std::int32_t>(a - b) < 0; }

}  // namespace

void RefusalLog::Add(std::uint32_t sequence, std::uint8_t code, bool said) {
  if (codes_.empty() ||
      (unsaid_ == 0 && sequence - base_ > 2 * kept_ && !IsBefore(sequence, base_))) {
    codes_.clear();
    base_ = sequence;
  }
  // A frame whose payload was still being received when a later one was refused.
  while (IsBefore(sequence, base_)) {
    codes_.push_front(0);
    --base_;
    ++first_unsaid_;
  }
  const std::size_t at = sequence - base_;
  if (at >= codes_.size()) codes_.resize(at + 1, 0);
  codes_[at] = said ? code : static_cast<std::uint8_t>(code | kUnsaid);
  if (said) return;
  first_unsaid_ = unsaid_ == 0 ? at : std::min(first_unsaid_, at);
  ++unsaid_;
}

std::optional<wire::RefusalOnWire> RefusalLog::NextUnsaid() const {
  if (unsaid_ == 0) return std::nullopt;
  const auto code = static_cast<std::uint8_t>(codes_[first_unsaid_] & ~kUnsaid);
  return wire::RefusalOnWire{base_ + static_cast<std::uint32_t>(first_unsaid_), code};
}

void RefusalLog::SaidNext() {
  std::uint8_t& code = codes_[first_unsaid_];
  code = static_cast<std::uint8_t>(code & ~kUnsaid);
  --unsaid_;
  while (unsaid_ > 0 && (codes_[first_unsaid_] & kUnsaid) == 0) ++first_unsaid_;
}

void RefusalLog::MarkAllSaid() {
  for (std::uint8_t& code : codes_) code = static_cast<std::uint8_t>(code & ~kUnsaid);
  unsaid_ = 0;
}

std::uint32_t RefusalLog::Acknowledgeable(std::uint32_t finished) const noexcept {
  if (unsaid_ == 0) return finished;
  const std::uint32_t first = base_ + static_cast<std::uint32_t>(first_unsaid_);
  return IsBefore(first, finished) ? first : finished;
}

std::size_t RefusalLog::UnsaidSpan(std::uint32_t finished) const noexcept {
  return finished - Acknowledgeable(finished);
}

void RefusalLog::Forget(std::uint32_t finished) {
  while (!codes_.empty() && IsBefore(base_, finished)) {
    const bool needless = codes_.front() == 0 || finished - base_ > kept_;
    if (!needless || (unsaid_ > 0 && first_unsaid_ == 0)) return;
    codes_.pop_front();
    ++base_;
    if (unsaid_ > 0) --first_unsaid_;
  }
}

std::vector<wire::RefusalOnWire> RefusalLog::Latest(std::size_t most) const {
  std::vector<wire::RefusalOnWire> latest;
  for (std::size_t at = codes_.size(); at-- > 0 && latest.size() < most;) {
    const auto code = static_cast<std::uint8_t>(codes_[at] & ~kUnsaid);
    if (code != 0) latest.push_back({base_ + static_cast<std::uint32_t>(at), code});
  }
  std::reverse(latest.begin(), latest.end());
  return latest;
}

void RefusalLog::Clear() {
  std::deque<std::uint8_t>().swap(codes_);
  unsaid_ = 0;
}

// ---- AckSchedule --------------------------------------------------------------------------------

namespace {

// After this many slices, or bytes, an acknowledgement is no longer delayed until the loop is idle.
constexpr std::uint64_t kMinAckBytes = 512 * kKiB;
// Nor with this many frames unacknowledged: the peer keeps a record of each.
constexpr std::uint32_t kAckFrames = 64;

}  // namespace

AckSchedule::When AckSchedule::CountFinished(std::uint64_t payload_bytes) {
  ++finished_;
  refusals_.Forget(finished_);
  unacked_bytes_ += payload_bytes;
  const std::uint64_t slices =
      std::min(std::max(kAckSlices * payload_bytes, kMinAckBytes), kAckSlices * slice_bytes_);
  const std::uint64_t many = std::min(window_bytes_ / 4, slices);
  if (unacked_bytes_ >= many || finished_ - last_acked_ >= kAckFrames) return When::kNow;
  // It may be carried by another frame, or cover more frames.
  return std::exchange(scheduled_, true) ? When::kScheduled : When::kWhenIdle;
}

std::uint32_t AckSchedule::Take() {
  last_acked_ = refusals_.Acknowledgeable(finished_);
  unacked_bytes_ = 0;
  return last_acked_;
}

void AckSchedule::OnLaneDown() {
  refusals_.MarkAllSaid();
  scheduled_ = false;
}

LaneProgress AckSchedule::progress() const { return {finished_, refusals_.Latest(kMaxRefusals)}; }

// ---- ControlFrames ------------------------------------------------------------------------------

bool* ControlFrames::QueuedFlag(wire::Type type) {
  switch (type) {
    case wire::Type::kAck: return &ack_queued_;
    case wire::Type::kPing: return &ping_queued_;
    case wire::Type::kPong: return &pong_queued_;
    default: return nullptr;
  }
}

bool ControlFrames::Add(wire::Type type) {
  if (bool* const queued = QueuedFlag(type); queued != nullptr && std::exchange(*queued, true)) {
    ack_due_ |= type == wire::Type::kAck;
    pong_due_ |= type == wire::Type::kPong;
    return false;
  }
  if (type == wire::Type::kLaneLost && queued_ >= kMaxPlain) return false;  // it is repeated
  if (type == wire::Type::kNack) ++refusals_queued_;
  ++queued_;
  return true;
}

ControlFrames::Next ControlFrames::OnSent(wire::Type type) {
  --queued_;
  if (bool* const queued = QueuedFlag(type)) *queued = false;
  switch (type) {
    case wire::Type::kAck: return std::exchange(ack_due_, false) ? Next::kAck : Next::kNothing;
    case wire::Type::kPong: return std::exchange(pong_due_, false) ? Next::kPong : Next::kNothing;
    case wire::Type::kNack: --refusals_queued_; return Next::kRefusals;
    default: return Next::kNothing;
  }
}

bool ControlFrames::may_refuse() const noexcept { return refusals_queued_ < kMaxNacks; }

// ---- LaneMemory ---------------------------------------------------------------------------------
//
// Two honest sides must never both wait for the other to read. So a lane bounds its control frames
// without pausing (ControlFrames), and pauses for answers to reads only beyond the number of
// requests that a peer of this release makes.

namespace {

constexpr std::uint64_t kChargeStep = 4 * kKiB;

std::uint64_t InSteps(std::uint64_t bytes) {
  return (bytes + kChargeStep - 1) / kChargeStep * kChargeStep;
}

}  // namespace

void LaneMemory::Hold(std::uint64_t bytes) {
  held_ += bytes;
  if (held_ <= charged_) return;
  const std::uint64_t more = InSteps(held_ - charged_);
  memory_->Add(more);
  charged_ += more;
}

// Keeps one step in reserve, so that a lane at the edge of a step does not charge and return it for
// every frame.
void LaneMemory::Release(std::uint64_t bytes) {
  held_ -= bytes;
  const std::uint64_t spare = charged_ - held_;
  if (spare < 3 * kChargeStep) return;
  const std::uint64_t back = (spare / kChargeStep - 1) * kChargeStep;
  memory_->Remove(back);
  charged_ -= back;
}

// ---- answers to reads ---------------------------------------------------------------------------

// Upper bound of the cost of answers that a peer of this release can have requested and not
// acknowledged.
std::uint64_t LaneMemory::GuaranteedAnswers() const {
  return AskBudget(lanes_) + AnswerCost(wire::kMaxBlocksPerRead) +
         (kMaxReplies + 16) * kRecordBytes;
}

AnswerMemory LaneMemory::ReserveAnswer(std::uint64_t bytes, std::size_t answers) {
  if (answers >= 4 * kMaxReplies) return AnswerMemory::kNone;
  if (answer_bytes_ + bytes <= GuaranteedAnswers()) return AnswerMemory::kGuaranteed;
  // The rest of the guarantee is reserved for messages.
  const bool taken = !memory_->full() && memory_->TryAdd(bytes);
  return taken ? AnswerMemory::kOptional : AnswerMemory::kNone;
}

void LaneMemory::CancelAnswer(std::uint64_t bytes, AnswerMemory from) {
  if (from == AnswerMemory::kOptional) memory_->RemoveTried(bytes);
}

void LaneMemory::HoldAnswer(std::uint64_t bytes, AnswerMemory from) {
  answer_bytes_ += bytes;
  if (from != AnswerMemory::kOptional) Hold(bytes);
}

void LaneMemory::ReleaseAnswer(std::uint64_t bytes, AnswerMemory from) {
  answer_bytes_ -= bytes;
  from == AnswerMemory::kOptional ? memory_->RemoveTried(bytes) : Release(bytes);
}

void LaneMemory::HoldRecord() {
  answer_bytes_ += kRecordBytes;
  Hold(kRecordBytes);
}

void LaneMemory::ReleaseRecord() {
  answer_bytes_ -= kRecordBytes;
  Release(kRecordBytes);
}

// ---- the rest -----------------------------------------------------------------------------------

void LaneMemory::HoldKept(std::uint64_t bytes) {
  kept_bytes_ += bytes;
  Hold(bytes);
}

void LaneMemory::ReleaseKept(std::uint64_t bytes) {
  kept_bytes_ -= bytes;
  Release(bytes);
}

// A small part of the limit: what the peer requests beyond it need not be built before it reads.
bool LaneMemory::may_keep() const noexcept {
  return kept_bytes_ < std::min(HeldMemory::kGuaranteed, memory_->limit() / 32);
}

void LaneMemory::SetScratch(std::uint64_t bytes) {
  if (closed_) return;
  const std::uint64_t before = std::exchange(scratch_bytes_, bytes);
  if (bytes > before) Hold(bytes - before);
  if (bytes < before) Release(before - bytes);
}

void LaneMemory::SetBuffers(std::uint64_t bytes) {
  if (closed_) return;
  const std::uint64_t before = std::exchange(buffer_bytes_, InSteps(bytes));
  if (buffer_bytes_ > before) memory_->AddBuffers(buffer_bytes_ - before);
  if (buffer_bytes_ < before) memory_->RemoveBuffers(before - buffer_bytes_);
}

void LaneMemory::Close() {
  closed_ = true;
  memory_->Remove(std::exchange(charged_, 0));
  memory_->RemoveBuffers(std::exchange(buffer_bytes_, 0));
  held_ = answer_bytes_ = kept_bytes_ = scratch_bytes_ = 0;
}

// ---- FrameChecksum ------------------------------------------------------------------------------

std::uint32_t Crc32cOf(std::span<const iovec> pieces) {
  const UnorderedAccess reading;
  std::uint32_t crc = 0;
  for (const iovec& piece : pieces) {
    crc = Crc32c(std::span(static_cast<const std::byte*>(piece.iov_base), piece.iov_len), crc);
  }
  return crc;
}

std::uint32_t MetadataCrc(std::span<const std::byte> meta, const wire::MessageHeader& header) {
  wire::MessageHeader summed = header;
  summed.meta_crc = 0;
  return Crc32c(meta.subspan(sizeof header), Crc32c(wire::BytesOf(summed)));
}

void SealPayload(std::uint32_t crc, std::vector<std::byte>* meta) {
  std::memcpy(meta->data() + offsetof(wire::MessageHeader, crc), &crc, sizeof crc);
}

void SealMetadata(std::vector<std::byte>* meta) {
  const auto flags = static_cast<std::byte>(wire::kChecked);
  std::memcpy(meta->data() + offsetof(wire::MessageHeader, flags), &flags, 1);
  std::byte* const at = meta->data() + offsetof(wire::MessageHeader, meta_crc);
  std::memset(at, 0, sizeof(std::uint32_t));
  const std::uint32_t crc = Crc32c(*meta);
  std::memcpy(at, &crc, sizeof crc);
}

// ---- FramePool ----------------------------------------------------------------------------------

namespace {

// Free frames kept for reuse: the limit at any time, and the limit after a heartbeat has found them
// unused.
constexpr std::size_t kMaxFreeFrames = 256;
constexpr std::size_t kFreeFramesAtRest = 16;

std::size_t SizeOf(const LaneFrame& frame) {
  return sizeof frame + frame.meta.capacity() + frame.payload.capacity() * sizeof(iovec);
}

}  // namespace

LaneFrame* FramePool::New(wire::Type type, std::uint64_t operation_id, bool checked) {
  LaneFrame* const frame = TakeFree();
  frame->used = true;
  frame->type = type;
  frame->meta.clear();
  frame->payload.clear();
  frame->registered = {};
  frame->payload_bytes = 0;
  frame->may_splice = false;
  frame->over_network = false;
  frame->spliced_to = 0;
  frame->payload_number = 0;
  frame->unsent = 0;
  frame->plain = false;
  frame->sequenced = false;
  frame->kept = false;
  frame->checked = checked;
  wire::MessageHeader header;
  header.type = type;
  header.operation = operation_id;
  wire::Append(&frame->meta, header);
  return frame;
}

LaneFrame* FramePool::TakeFree() {
  if (free_.empty()) {
    frames_.push_back(std::make_unique<LaneFrame>());
    frames_.back()->place = frames_.size() - 1;
    return frames_.back().get();
  }
  LaneFrame* const frame = free_.back();
  free_.pop_back();
  free_bytes_ -= SizeOf(*frame);
  return frame;
}

void FramePool::HoldPlain(LaneFrame* frame, std::uint64_t bytes) {
  frame->cost = LaneFrame::Cost::kPlain;
  frame->held = bytes;
  memory_->Hold(bytes);
}

void FramePool::HoldKept(LaneFrame* frame, std::uint64_t bytes) {
  frame->cost = LaneFrame::Cost::kKept;
  frame->held = bytes;
  memory_->HoldKept(bytes);
}

void FramePool::HoldAnswer(LaneFrame* frame, std::uint64_t bytes, AnswerMemory from) {
  frame->cost = LaneFrame::Cost::kAnswer;
  frame->answer_from = from;
  frame->held = bytes;
  memory_->HoldAnswer(bytes, from);
}

void FramePool::Keep(LaneFrame* frame) {
  frame->kept = true;
  ++kept_;
}

void FramePool::ReturnMemory(LaneFrame* frame) {
  const std::uint64_t held = std::exchange(frame->held, 0);
  switch (std::exchange(frame->cost, LaneFrame::Cost::kNothing)) {
    case LaneFrame::Cost::kNothing: break;
    case LaneFrame::Cost::kPlain: return memory_->Release(held);
    case LaneFrame::Cost::kKept: return memory_->ReleaseKept(held);
    case LaneFrame::Cost::kAnswer: return memory_->ReleaseAnswer(held, frame->answer_from);
  }
}

// The frame's buffers are kept only up to a small size.
void FramePool::Recycle(LaneFrame* frame) {
  if (!std::exchange(frame->used, false)) return;
  if (std::exchange(frame->kept, false)) --kept_;
  ReturnMemory(frame);
  FreeIfOver(kSmallMeta, &frame->meta);
  FreeIfOver(kSmallList, &frame->payload);
  const std::size_t bytes = free_bytes_ + SizeOf(*frame);
  if (free_.size() >= kMaxFreeFrames || bytes > kMaxFreeBytes) return Delete(frame);
  free_bytes_ = bytes;
  spare_bytes_ = std::max(spare_bytes_, bytes);
  free_.push_back(frame);
}

void FramePool::RecycleUnkept() {
  std::vector<LaneFrame*> lost;
  for (const auto& frame : frames_) {
    if (frame->used && !frame->kept) lost.push_back(frame.get());
  }
  for (LaneFrame* const frame : lost) Recycle(frame);
}

// Constant time: the last frame takes the freed index.
void FramePool::Delete(LaneFrame* frame) {
  const std::size_t place = frame->place;
  frames_.back()->place = place;
  std::swap(frames_[place], frames_.back());
  frames_.pop_back();
}

// Halves the free frames at each call, so that memory of a burst is returned within a few
// heartbeats.
void FramePool::Trim() {
  const std::size_t rest = std::max(kFreeFramesAtRest, free_.size() / 2);
  while (free_.size() > rest) Delete(TakeFree());
  spare_bytes_ = free_bytes_;
  if (frames_.capacity() > 4 * std::max(frames_.size(), kFreeFramesAtRest)) frames_.shrink_to_fit();
  if (free_.capacity() > 4 * kFreeFramesAtRest) free_.shrink_to_fit();
}

void FramePool::Clear() {
  for (const auto& frame : frames_) {
    if (frame->cost == LaneFrame::Cost::kAnswer) {
      memory_->CancelAnswer(frame->held, frame->answer_from);
    }
  }
  std::vector<LaneFrame*>().swap(free_);
  std::vector<std::unique_ptr<LaneFrame>>().swap(frames_);
  kept_ = free_bytes_ = spare_bytes_ = 0;
}

std::uint64_t OperationIn(const net::OutFrame& frame) {
  wire::MessageHeader header;
  FERRY_CHECK(wire::MetaReader(frame.meta).Read(&header), frame.meta.size());
  return header.operation;
}

// ---- FrameSender --------------------------------------------------------------------------------

FrameSender::FrameSender(const LaneSite& site)
    : site_(site),
      memory_(site.context.memory, site.context.lanes),
      pool_(&memory_),
      acks_(site.max_sequenced(), site.context.window_bytes, site.context.config->slice_bytes) {}

void FrameSender::SetLane(net::Lane* lane) {
  lane_ = lane;
  if (lane != nullptr) return;
  acks_.OnLaneDown();
  site_.loop->CancelDeferredOnLoop(this);
}

void FrameSender::ForgetQueued() { control_.Reset(); }

void FrameSender::Seal(LaneFrame* frame) {
  if (!frame->checked || frame->payload_bytes == 0) return;
  // A GPU has summed what it has read, so that what happens to the slot afterwards is found, too.
  const bool summed = frame->staged && frame->staged->summed;
  SealPayload(summed ? frame->staged->crc : Crc32cOf(frame->payload), &frame->meta);
}

// Every frame acknowledges all frames that came before it, up to the first refusal that is not
// sent yet.
void FrameSender::Send(LaneFrame* frame) {
  const std::uint32_t ack = acks_.Take();
  std::memcpy(frame->meta.data() + offsetof(wire::MessageHeader, ack), &ack, sizeof ack);
  if (frame->checked) SealMetadata(&frame->meta);
  frame->handed_over = {};
  if (frame->payload_bytes > 0 && ActiveTrace() != nullptr) frame->handed_over = Clock::now();
  lane_->Send(frame);
}

void FrameSender::TracePayload(const char* what, std::uint64_t bytes,
                               Clock::time_point since) const {
  if (since == Clock::time_point{}) return;
  Trace* const trace = ActiveTrace();
  if (trace == nullptr) return;
  trace->AddInTurn(fmt::format("lane {} {}", site_.index, what), FormatSize(bytes), since,
                   Clock::now());
}

void FrameSender::SendPlain(wire::Type type, std::uint64_t operation_id,
                            std::span<const std::byte> body, std::string_view text) {
  if (lane_ == nullptr || !control_.Add(type)) return;
  LaneFrame* const frame = New(type, operation_id);
  frame->meta.insert(frame->meta.end(), body.begin(), body.end());
  wire::AppendText(&frame->meta, text);
  frame->plain = true;
  pool_.HoldPlain(frame, kPlainBytes + frame->meta.size());
  Send(frame);
}

// Sends what was merged into the frame while it was queued.
void FrameSender::OnPlainSent(wire::Type type) {
  switch (control_.OnSent(type)) {
    case ControlFrames::Next::kNothing: break;
    case ControlFrames::Next::kAck: return SendAck();
    case ControlFrames::Next::kPong: return SendPlain(wire::Type::kPong, 0, {});
    case ControlFrames::Next::kRefusals: return SendPendingNacks();
  }
}

// ---- acknowledgements ---------------------------------------------------------------------------

void FrameSender::SendAck() {
  if (acks_.due()) SendPlain(wire::Type::kAck, 0, {});
}

void FrameSender::FlushAck() {
  if (lane_ == nullptr) return;
  SendAck();
  lane_->Flush();  // includes frames queued before
  if (lane_ == nullptr) return;
  // An acknowledgement that was queued earlier may acknowledge less.
  SendAck();
  lane_->Flush();
}

void FrameSender::CountFinished(std::uint64_t payload_bytes) {
  switch (acks_.CountFinished(payload_bytes)) {
    case AckSchedule::When::kNow: return SendAck();
    case AckSchedule::When::kWhenIdle:
      return site_.loop->DeferOnLoop(EventLoop::Defer::kIdle, this);
    case AckSchedule::When::kScheduled: break;
  }
}

void FrameSender::RunDeferredOnLoop(EventLoop::Defer /*when*/) {
  acks_.OnIdle();
  SendAck();
}

// ---- refusals -----------------------------------------------------------------------------------

void FrameSender::Refuse(std::uint32_t sequence, std::uint64_t operation_id, const Error& error) {
  SendNack(sequence, operation_id, error);
  site_.context.owner->CountRefusal(error);
}

void FrameSender::SendNack(std::uint32_t sequence, std::uint64_t operation_id, const Error& error) {
  const auto code = static_cast<std::uint8_t>(error.code());
  // Without a lane, the replacement lane sends it.
  const bool now = lane_ == nullptr || (control_.may_refuse() && !acks_.refusals().has_unsaid());
  if (now) SendNackFrame({sequence, code}, operation_id, error.message());
  acks_.refusals().Add(sequence, code, now);
}

void FrameSender::SendNackFrame(const wire::RefusalOnWire& refusal, std::uint64_t operation_id,
                                std::string_view text) {
  wire::RefuseBody body;
  body.sequence = refusal.sequence;
  body.code = static_cast<std::uint8_t>(refusal.code);
  SendPlain(wire::Type::kNack, operation_id, wire::BytesOf(body), text.substr(0, kMaxRefusalText));
}

// Sends the refusals for which there was no room. Each is sent before its frame may be
// acknowledged, and does not carry that acknowledgement itself.
void FrameSender::SendPendingNacks() {
  if (!acks_.refusals().has_unsaid()) return;
  while (control_.may_refuse()) {
    const auto refusal = acks_.refusals().NextUnsaid();
    if (!refusal) break;
    const Code code = wire::CodeFromWire(static_cast<std::uint8_t>(refusal->code));
    SendNackFrame(
        *refusal, 0,
        fmt::format("{}; too many refusals at once to keep the reason of each", CodeName(code)));
    acks_.refusals().SaidNext();
  }
  if (!acks_.refusals().has_unsaid()) SendAck();  // was delayed until the last refusal was sent
}

LaneFrame* FrameSender::NewReadRefusal(std::uint64_t operation_id, std::uint32_t slice,
                                       const Error& error) {
  site_.context.owner->CountRefusal(error);
  wire::RefuseBody refusal;
  refusal.slice = slice;
  refusal.code = static_cast<std::uint8_t>(error.code());
  LaneFrame* const frame = New(wire::Type::kReadRefused, operation_id);
  wire::Append(&frame->meta, refusal);
  wire::AppendText(&frame->meta, std::string_view(error.message()).substr(0, kMaxRefusalText));
  frame->plain = true;
  (void)control_.Add(wire::Type::kReadRefused);  // always true: such a frame is never merged
  pool_.HoldAnswer(frame, AnswerCost(0), AnswerMemory::kGuaranteed);
  return frame;
}

void FrameSender::Close() {
  pool_.Clear();
  acks_.refusals().Clear();
  memory_.Close();
}

}  // namespace ferry::transfer
