// Sends slices and messages, and settles frames.
#include "ferry/transfer/lane/slice_sender.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <unordered_set>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/transfer/lane/lane_site.h"
#include "ferry/transfer/lane/message_queue.h"

namespace ferry::transfer {

// ---- LaneRate -----------------------------------------------------------------------------------

void LaneRate::Restart(Clock::time_point now) {
  bytes_ = 0;
  since_ = now;
}

bool LaneRate::Add(std::uint64_t bytes, Clock::time_point now) {
  constexpr auto kMin = milliseconds(20);
  bytes_ += bytes;
  const auto passed = now - since_;
  if (passed < kMin) return false;
  const double present =
      static_cast<double>(bytes_) / std::chrono::duration<double>(passed).count();
  const auto before = static_cast<double>(rate());
  const double next = before == 0 ? present : (before + present) / 2;
  rate_.store(static_cast<std::uint64_t>(next) + 1, std::memory_order_relaxed);
  Restart(now);
  return true;
}

// `ahead` bytes were sent while the slice was in flight, so their rate is a lower bound of the
// lane's rate. A lane without a queue may be much faster, so only slices that took long lower the
// limit; if none did, there is no limit.
void LaneRate::AddSlice(std::uint64_t ahead, Clock::time_point since, Clock::time_point now) {
  const std::chrono::duration<double> took =
      std::max<Clock::duration>(now - since, microseconds(1));
  const double bytes = std::min(static_cast<double>(ahead) * (grace_ / took), 1e18);
  const auto drains = static_cast<std::uint64_t>(bytes);
  drainable_ = took > grace_ / 4 ? drains : std::max(drainable_, drains);
}

// ---- WorkQueue ----------------------------------------------------------------------------------

void WorkQueue::Add(Op operation) {
  if (!members_.insert(operation.get()).second) return;
  if (queue_.size() >= sweep_at_) Sweep();
  queue_.push_back({std::move(operation)});
}

void WorkQueue::Rotate() {
  ++queue_.front().turns;
  if (queue_.size() == 1) return;
  queue_.push_back(std::move(queue_.front()));
  queue_.pop_front();
}

void WorkQueue::Pop() {
  members_.erase(queue_.front().operation.get());
  queue_.pop_front();
  if (queue_.empty()) sweep_at_ = kMinSweep;
}

void WorkQueue::Clear() {
  queue_.clear();
  members_.clear();
  sweep_at_ = kMinSweep;
}

// Operations that were cancelled, or whose last slice another lane has pulled, would stay until
// their turn, which may not come while the lane is blocked. A returned slice queues its operation
// again.
void WorkQueue::Sweep() {
  const auto is_over = [this](const Entry& entry) {
    return entry.operation->ledger.left() == 0 && members_.erase(entry.operation.get()) != 0;
  };
  queue_.erase(std::remove_if(queue_.begin(), queue_.end(), is_over), queue_.end());
  sweep_at_ = std::max(kMinSweep, 2 * queue_.size());
}

// ---- SlicePuller --------------------------------------------------------------------------------

namespace {

// How many slices a lane keeps queued for the socket. Slices are pulled late so that lanes of
// different speed finish together; two slices keep the socket from running dry between turns of the
// loop.
constexpr std::uint64_t kUnsentSlices = 2;
// GPU memory has smaller slices, and each waits for two more copies. Measured between two H100 with
// writes of 64 MiB over 16 lanes: 4 carried 24 to 27 GB/s, 8 carried 31, 16 carried 30.
constexpr std::uint64_t kStagedWrites = 8;
constexpr std::uint64_t kStagedReads = 6;
// What a lane keeps in flight of an operation of GPU memory of which it has already taken its
// share. Without this limit the first lanes to wake take all slices of an operation with few: reads
// of 1 MiB took 0.35 ms instead of 0.25, and those of 16 MiB 1.06 ms instead of 0.9.
constexpr std::uint64_t kBeyondShare = 2;
// Bytes per lane of slices that the peer copies: copies in flight must end before a cancel can end.
constexpr std::uint64_t kCopyWindow = 2 * wire::kMaxCopyBytes;

bool MayCopy(const OperationState& operation, const LaneLoad& load) {
  return operation.plan->shared_with == 0 || load.copying < kCopyWindow;
}

}  // namespace

void SlicePuller::Add(OperationRef operation) {
  if (stopped_) return;
  const Plan& plan = *operation->plan;
  const Queue queue = plan.direction == Direction::kRead ? Queue::kReads
                      : plan.staged                      ? Queue::kStagedWrites
                                                         : Queue::kWrites;
  QueueOf(queue).Add(std::move(operation));
}

void SlicePuller::Stop() {
  stopped_ = true;
  for (WorkQueue* const queue : {&writes_, &staged_, &reads_}) queue->Clear();
}

WorkQueue& SlicePuller::QueueOf(Queue queue) {
  return queue == Queue::kReads ? reads_ : queue == Queue::kStagedWrites ? staged_ : writes_;
}

std::optional<PulledSlice> SlicePuller::Pull(Queue from, const LaneLoad& load) {
  WorkQueue& queue = QueueOf(from);
  while (!queue.empty()) {
    OperationRef operation = queue.front();
    // Other lanes have taken the rest. Its limits must not hold up the operations behind it.
    if (operation->ledger.left() == 0) {
      queue.Pop();
      continue;
    }
    if (!May(from, load)) break;
    const auto slice = operation->ledger.Pull();
    // Remove it after its last slice; a slice that is returned queues it again.
    operation->ledger.left() == 0 ? queue.Pop() : queue.Rotate();
    if (slice) return PulledSlice{std::move(operation), static_cast<std::uint32_t>(*slice)};
  }
  return std::nullopt;
}

bool SlicePuller::May(Queue from, const LaneLoad& load) {
  const WorkQueue& queue = QueueOf(from);
  const OperationState& operation = *queue.front();
  const std::uint64_t taken = queue.front_turns();
  if (!MayCopy(operation, load)) return false;
  return from == Queue::kReads ? MayRead(operation, taken, load) : MayWrite(operation, taken, load);
}

bool SlicePuller::MayWrite(const OperationState& operation, std::uint64_t taken,
                           const LaneLoad& load) const {
  const bool staged = operation.plan->staged;
  if (staged && !load.may_stage) return false;
  const std::uint64_t least = staged ? kStagedWrites : 2 * kAckSlices;
  return load.unsent < kUnsentSlices * site_.context.config->slice_bytes &&
         load.unacknowledged < std::min(Share(operation, taken, least), load.drainable) &&
         load.frames < kMaxUnacked;
}

bool SlicePuller::MayRead(const OperationState& operation, std::uint64_t taken,
                          const LaneLoad& load) const {
  const std::uint64_t least = operation.plan->staged ? kStagedReads : kUnsentSlices;
  return load.reading < Share(operation, taken, least) && load.may_ask && load.frames < kMaxUnacked;
}

// Limit of an operation's bytes in flight on one lane. Near the end each lane takes less, a slower
// lane less than a fast one, so that all finish together: bytes in flight cannot move to another
// lane. Zero-copy pages fill a socket at once, without a memcpy that would slow the first lane down
// until the others are awake.
std::uint64_t SlicePuller::Share(const OperationState& operation, std::uint64_t taken,
                                 std::uint64_t least_slices) const {
  const std::uint64_t slice = operation.plan->slice_bytes;
  const double part = site_.context.shares->ShareOf(site_.index);
  const auto lanes = static_cast<double>(site_.context.bulk_lanes);
  const double least = std::clamp(static_cast<double>(least_slices) * part * lanes, 1.0,
                                  static_cast<double>(least_slices));
  const double share = static_cast<double>(operation.ledger.left()) * part / 2;
  auto slices = static_cast<std::uint64_t>(std::llround(std::max(least, share)));
  const double own = std::ceil(static_cast<double>(operation.plan->slice_count) * part);
  if (operation.plan->staged && static_cast<double>(taken) >= own) {
    slices = std::min(slices, kBeyondShare);
  }
  return std::min(site_.context.window_bytes, slices * slice);
}

// ---- SliceSender --------------------------------------------------------------------------------

namespace {

// Whether the frame answers one of the peer.
bool IsAnswer(wire::Type type) {
  return type == wire::Type::kCts || type == wire::Type::kDeclined || type == wire::Type::kShared ||
         type == wire::Type::kUnshared;
}

}  // namespace

SliceSender::SliceSender(const LaneSite& site, FrameSender* frames, LaneStaging* staging)
    : site_(site),
      frames_(frames),
      outbox_(&staging->outbox()),
      inbox_(&staging->inbox()),
      rate_(site.context.config->drain_grace),
      puller_(site) {}

// ---- pulling slices -----------------------------------------------------------------------------

void SliceSender::AddWork(OperationRef operation) {
  puller_.Add(std::move(operation));
  Pump();
}

LaneLoad SliceSender::Load() const {
  LaneLoad load;
  load.unsent = window_.unsent_bytes();
  load.unacknowledged = window_.bytes() + outbox_->bytes();
  load.frames = window_.size() + outbox_->size();
  load.drainable = rate_.drainable();
  load.copying = window_.copying_bytes();
  load.reading = reads_.bytes();
  load.may_stage = outbox_->MayStage();
  // The peer keeps a record of each answer until we acknowledge it. Our acknowledgement must wait
  // for unsent refusals and for copies to GPU memory: with more requests the peer would pause
  // before the frame that frees it.
  load.may_ask = !frames_->acks().refusals().has_unsaid() &&
                 reads_.size() + inbox_->size() < kMaxReplies &&
                 reads_.cost() < AskBudget(site_.context.lanes);
  return load;
}

bool SliceSender::SendNext(SlicePuller::Queue queue) {
  auto pulled = puller_.Pull(queue, Load());
  if (!pulled) return false;
  const PlanPart& part = PartOf(*pulled->operation->plan, pulled->slice);
  if (part.share != 0) {
    SendCopy(*std::move(pulled));
  } else if (queue == SlicePuller::Queue::kReads) {
    SendRead(*std::move(pulled));
  } else if (part.stager != nullptr) {
    StageWrite(*std::move(pulled));
  } else {
    SendWrite(*std::move(pulled));
  }
  return true;
}

// Restarts the rate measurement if the lane was idle.
void SliceSender::Pump() {
  if (!frames_->up() || puller_.stopped()) return;
  outbox_->Fill();
  if (puller_.empty()) return;
  if (window_.bytes() == 0 && outbox_->bytes() == 0 && reads_.bytes() == 0) {
    rate_.Restart(Clock::now());
  }
  // Alternate, so that host memory does not wait for staging slots.
  for (bool moved = true; moved;) {
    moved = SendNext(SlicePuller::Queue::kWrites);
    moved |= SendNext(SlicePuller::Queue::kStagedWrites);
  }
  while (SendNext(SlicePuller::Queue::kReads)) {
  }
}

void SliceSender::SendWrite(PulledSlice pulled) {
  const Plan& plan = *pulled.operation->plan;
  LaneFrame* const frame = frames_->New(wire::Type::kWrite, pulled.operation->id);
  AppendSlice(plan, pulled.slice, &frame->meta, &frame->payload);
  frame->payload_bytes = plan.slice(pulled.slice).range.bytes;
  frame->over_network = true;
  frame->may_splice = true;  // zero-copy: the memory is kept until the peer acknowledges the slice
  frame->unsent = frame->payload_bytes;
  frame->sequenced = true;
  frame->checked |= pulled.operation->checksum;
  SentFrame record;
  record.operation = std::move(pulled.operation);
  record.bytes = frame->payload_bytes;
  record.slice = pulled.slice;
  window_.AddUnsent(frame->unsent);
  window_.AddSlice(std::move(record), Clock::now());
  FrameSender::Seal(frame);
  frames_->Send(frame);
}

void SliceSender::SendRead(PulledSlice pulled) {
  const Plan& plan = *pulled.operation->plan;
  LaneFrame* const frame = frames_->New(wire::Type::kReadRequest, pulled.operation->id);
  AppendSlice(plan, pulled.slice, &frame->meta, nullptr);
  frame->checked |= pulled.operation->checksum;
  const Slice range = plan.slice(pulled.slice).range;
  const std::uint64_t id = pulled.operation->id;
  reads_.Add(
      {std::move(pulled.operation), id, pulled.slice, range.bytes, AnswerCost(range.blocks)});
  frames_->Send(frame);
}

// A slice that the region's owner copies between GPUs of one machine: the frame only describes it.
void SliceSender::SendCopy(PulledSlice pulled) {
  const Plan& plan = *pulled.operation->plan;
  LaneFrame* const frame = frames_->New(wire::Type::kCopy, pulled.operation->id);
  AppendCopy(plan, pulled.slice, &frame->meta);
  frame->sequenced = true;
  SentFrame record;
  record.copied = plan.slice(pulled.slice).range.bytes;
  record.operation = std::move(pulled.operation);
  record.slice = pulled.slice;
  window_.Add(std::move(record));
  frames_->Send(frame);
}

// ---- GPU memory ---------------------------------------------------------------------------------

// The frame's payload lists GPU addresses until the outbox turns them into blocks.
void SliceSender::StageWrite(PulledSlice pulled) {
  const Plan& plan = *pulled.operation->plan;
  LaneFrame* const frame = frames_->New(wire::Type::kWrite, pulled.operation->id);
  AppendSlice(plan, pulled.slice, &frame->meta, &frame->payload);
  frame->payload_bytes = plan.slice(pulled.slice).range.bytes;
  frame->over_network = true;
  frame->sequenced = true;
  frame->checked |= pulled.operation->checksum;
  StagedFrame staged;
  staged.frame = frame;
  staged.stager = PartOf(plan, pulled.slice).stager;
  staged.record.operation = std::move(pulled.operation);
  staged.record.bytes = frame->payload_bytes;
  staged.record.slice = pulled.slice;
  outbox_->Add(std::move(staged));
}

void SliceSender::SendStaged() {
  while (frames_->up()) {
    auto staged = outbox_->TakeReady();
    if (!staged) break;
    SendStagedFrame(*std::move(staged));
  }
  outbox_->Fill();
}

// Sends an entry whose copy has ended. If the copy failed, or the operation was stopped meanwhile,
// the slice is resolved or the read is refused instead.
void SliceSender::SendStagedFrame(StagedFrame staged) {
  LaneFrame* const frame = staged.frame;
  if (frame->plain) return frames_->Send(frame);
  const auto& operation = staged.record.operation;
  if (staged.copy) {
    frame->staged = staged.copy;
    const Status gathered = staged.copy->outcome;
    if (!gathered || (operation && operation->ledger.error())) {
      const std::uint64_t read = OperationIn(*frame);
      outbox_->ReleaseSlot(&frame->staged);
      frames_->pool().Recycle(frame);
      if (operation) {
        return Resolve(operation, gathered ? std::nullopt : std::optional(gathered.error()));
      }
      return frames_->Send(frames_->NewReadRefusal(read, staged.record.slice, gathered.error()));
    }
    staged.copy->pin.Release();
  }
  outbox_->AllowMore();
  frame->may_splice = true;
  frame->unsent = staged.record.bytes;
  window_.AddUnsent(frame->unsent);
  if (staged.record.reply) {
    frames_->memory().HoldRecord();
    window_.Add(std::move(staged.record));
  } else {
    window_.AddSlice(std::move(staged.record), Clock::now());
  }
  FrameSender::Seal(frame);
  frames_->Send(frame);
}

void SliceSender::DropStopped() {
  for (const StagedFrame& staged : outbox_->TakeStopped()) {
    frames_->pool().Recycle(staged.frame);
    Resolve(staged.record.operation);
  }
  SendStaged();
  Pump();
}

// ---- messages and control frames ----------------------------------------------------------------

void SliceSender::SendSequenced(wire::Type type, std::uint64_t operation_id,
                                std::span<const std::byte> body, std::span<const std::byte> payload,
                                OperationRef operation) {
  LaneFrame* const frame = frames_->New(type, operation_id);
  frame->meta.insert(frame->meta.end(), body.begin(), body.end());
  if (!payload.empty()) {
    frame->payload.push_back({const_cast<std::byte*>(payload.data()), payload.size()});
    frame->payload_bytes = payload.size();
  }
  frame->sequenced = true;
  frames_->pool().Keep(frame);
  if (IsAnswer(type)) frames_->pool().HoldKept(frame, kKeptFrameBytes + frame->meta.capacity());
  SentFrame record;
  record.operation = std::move(operation);
  record.bytes = payload.size();
  record.frame = frame;
  record.is_send = type == wire::Type::kSend;
  window_.Add(std::move(record));
  FrameSender::Seal(frame);
  // Without a lane, the replacement sends it.
  if (frames_->up()) frames_->Send(frame);
}

// ---- what has become of frames ------------------------------------------------------------------

void SliceSender::OnSent(LaneFrame* frame) {
  window_.RemoveUnsent(frame->unsent);
  if (frame->staged && frame->spliced_to != 0) {
    window_.next_sent().staged = std::exchange(frame->staged, nullptr);
  } else {
    outbox_->ReleaseSlot(&frame->staged);
  }
  if (!frame->sequenced) return;
  window_.next_sent().spliced_to = frame->spliced_to;
  window_.next_sent().payload = frame->payload_number;
  if (frame->payload_number != 0) window_.next_sent().sent_at = Clock::now();
  window_.MarkSent();
  if (auto settled = SettleFrames(); !settled) site_.context.owner->LaneFailed(settled.error());
}

Status SliceSender::OnAck(std::uint32_t ack) {
  switch (window_.Acknowledge(ack)) {
    case SendWindow::Ack::kInvalid:
      return MalformedFrame(site_, "acknowledges frames that were never sent");
    case SendWindow::Ack::kStale: break;
    case SendWindow::Ack::kProgress:
      FERRY_TRY(SettleFrames());
      Pump();
      break;
  }
  return Ok();
}

// A payload whose pages the kernel still holds cannot have been read by the peer.
Status SliceSender::SettleFrames() {
  bool kept = false;
  while (const SentFrame* const settled = window_.settled()) {
    if (!frames_->HasDelivered(settled->spliced_to)) {
      return MalformedFrame(site_, "acknowledges a payload before TCP has");
    }
    auto frame = window_.TakeSettled();
    if (frame->bytes > 0 && frame->operation) {
      const auto now = Clock::now();
      AddToRate(frame->bytes, now);
      if (frame->since != Clock::time_point{}) rate_.AddSlice(frame->ahead, frame->since, now);
    }
    if (frame->reply) frames_->memory().ReleaseRecord();
    outbox_->ReleaseSlot(&frame->staged);
    if (frame->frame != nullptr) {
      frames_->pool().Recycle(frame->frame);
      kept = true;
    }
    if (frame->becomes_rts) {
      site_.context.messages->BecomesRts(frame->operation);
    } else if (frame->operation) {
      Resolve(frame->operation);
    }
  }
  if (kept) site_.context.messages->OnAcknowledged();
  return Ok();
}

void SliceSender::AddToRate(std::uint64_t bytes, Clock::time_point now) {
  if (rate_.Add(bytes, now)) site_.context.shares->SetRate(site_.index, rate_.rate());
}

Status SliceSender::OnNack(wire::MetaReader* reader) {
  wire::RefuseBody body;
  if (!reader->Read(&body)) return MalformedFrame(site_, "nack");
  SentFrame* const frame = window_.Find(body.sequence);
  if (frame == nullptr) return MalformedFrame(site_, "refuses a frame that was never sent");
  if (!frame->operation) return Ok();
  ApplyRefusal(frame, Error(wire::CodeFromWire(body.code),
                            fmt::format("{} refused a {}: {}", site_.context.peer_name,
                                        OperationName(frame->operation->kind), reader->Text())));
  return Ok();
}

// The acknowledgement that follows settles the frame.
void SliceSender::ApplyRefusal(SentFrame* frame, const Error& error) {
  if (frame->is_send && error.code() == Code::kUnavailable) {
    // The sender keeps the message like one that waits for a CTS.
    frame->becomes_rts = true;
    return;
  }
  const bool over = frame->operation->ledger.Stop(error);
  FERRY_CHECK(!over, frame->operation->id);  // this slice is still in flight
}

Status SliceSender::OnReadRefused(const wire::MessageHeader& header, wire::MetaReader* reader) {
  wire::RefuseBody body;
  if (!reader->Read(&body) || reads_.Find(header.operation, body.slice) == nullptr) {
    return MalformedFrame(site_, "refuses a read that was not requested");
  }
  const ReadSlice slice = reads_.TakeOldest();
  if (slice.operation) {
    Resolve(slice.operation,
            Error(wire::CodeFromWire(body.code),
                  fmt::format("{} refused a read: {}", site_.context.peer_name, reader->Text())));
  }
  Pump();
  return Ok();
}

void SliceSender::OnReadEnd(const ReadEnd& end) {
  AddToRate(end.bytes, Clock::now());
  if (end.operation) Resolve(end.operation, end.error);
  Pump();
}

void SliceSender::Resolve(const OperationRef& operation, const std::optional<Error>& error) {
  // Stop() cannot end the round here: the slice being resolved is still in flight.
  if (error && operation->ledger.Stop(*error)) FERRY_CHECK(false, operation->id);
  if (operation->ledger.Resolve()) site_.context.operations->PostRoundDone(operation);
}

void SliceSender::AbandonReads(const OperationRef& operation) {
  for (std::size_t count = reads_.Abandon(operation.get()); count > 0; --count) Resolve(operation);
}

// ---- a lane that is lost or closed --------------------------------------------------------------
//
// First both sides stop using the old lane, so that nothing still in flight on it can change memory
// later. Then each side sends the other how many of its frames it has processed. The rest is
// resent: slices over whichever lane is free, messages in order over the new lane. Sequence numbers
// continue at the peer's count, so repeating the exchange changes nothing.

namespace {

// Whether the peer writes the slice into our memory.
bool IsCopyHere(const OperationState& operation, std::uint32_t slice) {
  return operation.kind == OperationKind::kRead && PartOf(*operation.plan, slice).share != 0;
}

}  // namespace

// Unacknowledged frames are kept: the peer's progress decides about them. Read data that has not
// arrived can be requested again at once: only this side knows where it belongs.
void SliceSender::OnLaneDown() {
  std::vector<PulledSlice> slices;
  for (ReadSlice& read : reads_.TakeAll()) {
    if (read.operation) slices.push_back({std::move(read.operation), read.slice});
  }
  for (PulledSlice& slice : TakeOutbox()) slices.push_back(std::move(slice));
  GiveBack(slices);
}

// Requires that no copy is in flight. Returns the slices of writes; the peer requests its reads
// again.
std::vector<PulledSlice> SliceSender::TakeOutbox() {
  std::vector<PulledSlice> slices;
  for (StagedFrame& staged : outbox_->TakeAll()) {
    if (staged.frame->plain) frames_->DropPlain();
    frames_->pool().Recycle(staged.frame);
    if (staged.record.operation) {
      slices.push_back({std::move(staged.record.operation), staged.record.slice});
    }
  }
  return slices;
}

// Returns slices that were pulled and are no longer in flight.
void SliceSender::GiveBack(const std::vector<PulledSlice>& slices) {
  std::unordered_set<const OperationState*> known;
  std::vector<OperationRef> again;  // each once, to queue for the lanes again
  for (const auto& [operation, slice] : slices) {
    if (!operation->ledger.error()) site_.counts->retries.Add();
    if (operation->ledger.Return(slice)) {
      site_.context.operations->PostRoundDone(operation);
    } else if (known.insert(operation.get()).second) {
      again.push_back(operation);
    }
  }
  // Done after all slices are returned: a lane drops an operation that has no slice left.
  for (const auto& operation : again) site_.context.operations->DealAgain(operation);
}

Status SliceSender::Settle(const LaneProgress& peer) {
  const std::uint32_t count = peer.finished - window_.first();
  if (count > window_.size())
    return MalformedFrame(site_, "has processed frames that were never sent");
  for (const wire::RefusalOnWire& refusal : peer.refused) {
    SentFrame* const frame = window_.Find(refusal.sequence);
    const bool was_processed = refusal.sequence - window_.first() < count;
    if (!was_processed || !frame->operation) continue;
    const auto code = wire::CodeFromWire(static_cast<std::uint8_t>(refusal.code));
    ApplyRefusal(frame,
                 Error(code, fmt::format("{} refused a {} ({}; the reason was lost with a lane)",
                                         site_.context.peer_name,
                                         OperationName(frame->operation->kind), CodeName(code))));
  }
  window_.Resume(count);
  FERRY_TRY(SettleFrames());
  FERRY_CHECK(window_.first() == peer.finished, window_.first(), peer.finished);
  return Ok();
}

// Takes back the frames that the old lane held. Those that are kept leave again in order; slices of
// writes return to their ledgers. The rest answered reads that the peer requests again.
void SliceSender::SendAgain() {
  std::deque<SentFrame> unfinished = window_.TakeAll();
  frames_->ForgetQueued();
  for (const auto& frame : frames_->pool().all()) outbox_->ReleaseSlot(&frame->staged);
  frames_->pool().RecycleUnkept();
  std::vector<PulledSlice> unwritten;
  for (SentFrame& frame : unfinished) {
    outbox_->ReleaseSlot(&frame.staged);
    if (frame.reply) frames_->memory().ReleaseRecord();
    frame.becomes_rts = false;
    if (LaneFrame* const kept = frame.frame; kept != nullptr) {
      window_.Add(std::move(frame));
      site_.counts->retries.Add();
      if (frames_->up()) frames_->Send(kept);
    } else if (frame.operation) {
      unwritten.push_back({std::move(frame.operation), frame.slice});
    }
  }
  GiveBack(unwritten);
}

void SliceSender::Stop() {
  puller_.Stop();
  outbox_->Stop();
}

std::vector<OperationRef> SliceSender::Close(const Error& error) {
  std::vector<OperationRef> late;
  for (SentFrame& frame : window_.TakeAll()) {
    if (frame.operation && IsCopyHere(*frame.operation, frame.slice)) {
      late.push_back(std::move(frame.operation));
    } else if (frame.operation) {
      Resolve(frame.operation, error);
    }
    frame.pin.Release();
    outbox_->ReleaseSlot(&frame.staged);
  }
  for (const auto& [operation, slice] : TakeOutbox()) Resolve(operation, error);
  for (const auto& frame : frames_->pool().all()) outbox_->ReleaseSlot(&frame->staged);
  for (const ReadSlice& read : reads_.TakeAll()) {
    if (read.operation) Resolve(read.operation, error);
  }
  return late;
}

}  // namespace ferry::transfer
