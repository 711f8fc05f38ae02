// The sending half of a lane: pulls slices, sends frames, handles acknowledgements and close.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/core/crc32c.h"
#include "ferry/core/trace.h"
#include "ferry/core/units.h"
#include "ferry/core/unordered_access.h"
#include "ferry/transfer/engine/lane_engine.h"
#include "ferry/transfer/engine/lane_limits.h"

namespace ferry::transfer {
namespace {

// How many slices a lane keeps queued for the socket. Slices are pulled late so that lanes of
// different speed finish together; two slices keep the socket from running dry between turns of the
// loop.
constexpr std::uint64_t kUnsentSlices = 2;
// GPU memory has smaller slices, and each waits for two more copies.
constexpr std::uint64_t kStagedWrites = 4;
constexpr std::uint64_t kStagedReads = 6;
// After this many slices, or bytes, an acknowledgement is no longer delayed until the loop is idle.
constexpr std::uint64_t kAckSlices = 2;
constexpr std::uint64_t kMinAckBytes = 512 * kKiB;

// Bytes per lane of slices that the peer copies: copies in flight must end before a cancel can end.
constexpr std::uint64_t kCopyWindow = 2 * wire::kMaxCopyBytes;
// Added to drain_grace, after which a peer begins no further copy (channel_copy.cc): copies that it
// has begun have ended by then.
constexpr auto kLateCopies = milliseconds(100);

// Whether the peer writes the slice into our memory.
bool IsCopyHere(const OperationState& operation, std::uint32_t slice) {
  return operation.kind == OperationKind::kRead && PartOf(*operation.plan, slice).share != 0;
}

}  // namespace

std::uint32_t Crc32cOf(std::span<const iovec> pieces) {
  const UnorderedAccess reading;
  std::uint32_t crc = 0;
  for (const iovec& piece : pieces) {
    crc = Crc32c(std::span(static_cast<const std::byte*>(piece.iov_base), piece.iov_len), crc);
  }
  return crc;
}

LaneEngine::LaneEngine(const LaneContext& context, LaneOwner* owner, MessageSink* messages,
                       EventLoop* loop, std::uint32_t index)
    : context_(context),
      owner_(owner),
      messages_(messages),
      loop_(loop),
      index_(index),
      refusals_(2 * MaxSequenced()) {}

LaneEngine::~LaneEngine() = default;

void LaneEngine::Adopt(std::unique_ptr<net::Lane> lane) {
  lane_ = std::move(lane);
  up_ = true;
  lane_->Attach(loop_, this);
}

std::uint64_t LaneEngine::BytesReceived() const {
  const std::lock_guard lock(lane_mutex_);
  return bytes_before_ + (lane_ ? lane_->BytesReceived() : 0);
}

LaneTraffic LaneEngine::Traffic() const {
  return {.bytes_sent = counts_.bytes_sent.get(),
          .bytes_received = counts_.bytes_received.get(),
          .frames_sent = counts_.frames_sent.get(),
          .frames_received = counts_.frames_received.get(),
          .payload_bytes_sent = counts_.payload_bytes_sent.get(),
          .payload_bytes_received = counts_.payload_bytes_received.get(),
          .retries = counts_.retries.get(),
          .retransmitted_segments = counts_.retransmits.get()};
}

void LaneEngine::SamplePathOnLoop() {
  if (closed_ || !up_) return;
  const net::PathStats path = lane_->Path();
  if (path.retransmitted_segments > lane_retransmits_) {
    counts_.retransmits.Add(path.retransmitted_segments - lane_retransmits_);
    lane_retransmits_ = path.retransmitted_segments;
  }
  owner_->SetLanePath(index_, path);
}

void LaneEngine::Beat(bool heard) {
  if (closed_ || !up_) return;
  SamplePathOnLoop();
  // Bytes that wait in the socket for the rest of a payload count as heard, too.
  lane_->Poke();
  if (!heard) SendPlain(wire::Type::kPing, 0, {});
  TrimFrames();
  // Another connection may have released the memory that this lane waits for.
  if (std::exchange(paused_, false)) lane_->Resume();
}

void LaneEngine::Look() {
  if (!closed_ && up_) lane_->Poke();
}

void LaneEngine::Probe() { SendPlain(wire::Type::kPing, 0, {}); }

// ---- slices -------------------------------------------------------------------------------------

void LaneEngine::AddWork(OperationRef operation) {
  if (closed_) return;  // the function that closed the lane stops the ledger
  const bool writes = operation->plan->direction == Direction::kWrite;
  auto& work = !writes ? reads_ : operation->plan->staged ? staged_writes_ : writes_;
  work.Add(std::move(operation));  // may still be queued, if slices were returned
  PumpOnLoop();
}

// Limit of an operation's bytes in flight on one lane. Near the end each lane takes less, a slower
// lane less than a fast one, so that all finish together: bytes in flight cannot move to another
// lane. Zero-copy pages fill a socket at once, without a memcpy that would slow the first lane down
// until the others are awake.
std::uint64_t LaneEngine::Share(const OperationState& operation, std::uint64_t least_slices) const {
  const std::uint64_t slice = operation.plan->slice_bytes;
  const double part = owner_->ShareOf(index_);
  const auto lanes = static_cast<double>(context_.bulk_lanes);
  const double least = std::clamp(static_cast<double>(least_slices) * part * lanes, 1.0,
                                  static_cast<double>(least_slices));
  const double share = static_cast<double>(operation.ledger.left()) * part / 2;
  const auto slices = static_cast<std::uint64_t>(std::llround(std::max(least, share)));
  return std::min(context_.window_bytes, slices * slice);
}

// Called with the bytes that have been sent or received. The clock stops while nothing is in
// flight.
void LaneEngine::MeasureRate(std::uint64_t bytes) {
  constexpr auto kMin = milliseconds(20);
  rate_bytes_ += bytes;
  const auto now = Clock::now();
  const auto passed = now - rate_since_;
  if (passed < kMin) return;
  const double present =
      static_cast<double>(rate_bytes_) / std::chrono::duration<double>(passed).count();
  const auto before = static_cast<double>(rate());
  const double next = before == 0 ? present : (before + present) / 2;
  rate_.store(static_cast<std::uint64_t>(next) + 1, std::memory_order_relaxed);
  rate_bytes_ = 0;
  rate_since_ = now;
}

void LaneEngine::AddSlice(Unacked record) {
  unacked_bytes_ += record.bytes;
  record.since = Clock::now();
  record.ahead = unacked_bytes_;
  unacked_.push_back(std::move(record));
}

// Limits the bytes in flight on a lane to those it can carry within drain_grace, because a
// cancelled operation waits for them. `ahead` bytes were sent while the slice was in flight, so
// their rate is a lower bound of the lane's rate. A lane without a queue may be much faster, so
// only slices that took long lower the limit; if none did, there is no limit.
void LaneEngine::MeasureDrain(const Unacked& slice) {
  if (slice.since == Clock::time_point{}) return;
  constexpr microseconds kMin = milliseconds(250);  // longer than any round trip
  const std::chrono::duration<double> grace =
      std::max<microseconds>(context_.config->drain_grace, kMin);
  const std::chrono::duration<double> took =
      std::max<Clock::duration>(Clock::now() - slice.since, microseconds(1));
  const double bytes = std::min(static_cast<double>(slice.ahead) * (grace / took), 1e18);
  const auto drains = static_cast<std::uint64_t>(bytes);
  drainable_ = took > grace / 4 ? drains : std::max(drainable_, drains);
}

bool LaneEngine::MayCopy(const OperationState& operation) const {
  return operation.plan->shared_with == 0 || copying_bytes_ < kCopyWindow;
}

bool LaneEngine::MayWrite(const OperationState& operation) const {
  if (!MayCopy(operation)) return false;
  const bool staged = operation.plan->staged;
  if (staged && !MayStage()) return false;
  const std::uint64_t least = staged ? kStagedWrites : 2 * kAckSlices;
  const std::uint64_t drainable = std::max<std::uint64_t>(drainable_, 1);  // at least one slice
  return unsent_bytes_ < kUnsentSlices * context_.config->slice_bytes &&
         unacked_bytes_ + outbox_bytes_ < std::min(Share(operation, least), drainable) &&
         unacked_.size() + outbox_.size() < kMaxUnacked;
}

bool LaneEngine::MayRead(const OperationState& operation) const {
  const std::uint64_t least = operation.plan->staged ? kStagedReads : kUnsentSlices;
  return reading_bytes_ < Share(operation, least) && MayAskForMore() &&
         unacked_.size() < kMaxUnacked && MayCopy(operation);
}

// Limit of the sequenced frames that a peer with our settings has in flight on this lane. The first
// lane has the messages, too.
std::size_t LaneEngine::MaxSequenced() const {
  const std::size_t messages = index_ == 0 ? context_.config->max_operations : 0;
  return kMaxUnacked + kMaxReplies + messages;
}

// Round robin over the operations, one slice each.
bool LaneEngine::PumpOne(WorkQueue* work) {
  const OperationRef operation = work->front();
  const auto slice = operation->ledger.Pull();
  // Remove it after its last slice; a slice that is returned queues it again.
  operation->ledger.left() == 0 ? work->Pop() : work->Rotate();
  if (!slice) return true;
  const auto index = static_cast<std::uint32_t>(*slice);
  if (PartOf(*operation->plan, index).share != 0) {
    SendCopy(operation, index);
  } else if (work == &reads_) {
    SendReadRequest(operation, index);
  } else if (PartOf(*operation->plan, index).stager != nullptr) {
    StageWrite(operation, index);
  } else {
    SendWriteSlice(operation, index);
  }
  return true;
}

// Sends as much as the limits allow. Called whenever a limit may have moved: new work, an
// acknowledgement, a sent frame. Restarts the rate measurement if the lane was idle.
void LaneEngine::PumpOnLoop() {
  if (!up_ || closing_) return;
  FillOutbox();
  const bool idle = unacked_bytes_ == 0 && outbox_bytes_ == 0 && reading_bytes_ == 0;
  if (idle && !(writes_.empty() && staged_writes_.empty() && reads_.empty())) {
    rate_bytes_ = 0;
    rate_since_ = Clock::now();
  }
  const auto write = [this](auto* work) {
    return !closed_ && !work->empty() && MayWrite(*work->front()) && PumpOne(work);
  };
  // Alternate, so that host memory does not wait for staging slots.
  for (bool moved = true; moved;) {
    moved = write(&writes_);
    moved |= write(&staged_writes_);
  }
  while (!closed_ && !reads_.empty() && MayRead(*reads_.front())) PumpOne(&reads_);
}

void LaneEngine::SendWriteSlice(const OperationRef& operation, std::uint32_t slice) {
  const Plan& plan = *operation->plan;
  Frame* const frame = NewFrame(wire::Type::kWrite, operation->id);
  AppendSlice(plan, slice, &frame->meta, &frame->payload);
  frame->payload_bytes = plan.slices[slice].range.bytes;
  frame->may_splice = true;  // zero-copy: the memory is kept until the peer acknowledges the slice
  frame->unsent = frame->payload_bytes;
  unsent_bytes_ += frame->unsent;
  frame->sequenced = true;
  AddSlice({operation, frame->payload_bytes, slice});
  frame->checked |= operation->checksum;
  Checksum(frame);
  SendFrame(frame);
}

void LaneEngine::SendReadRequest(const OperationRef& operation, std::uint32_t slice) {
  const Plan& plan = *operation->plan;
  Frame* const frame = NewFrame(wire::Type::kReadRequest, operation->id);
  AppendSlice(plan, slice, &frame->meta, nullptr);
  frame->checked |= operation->checksum;
  const Slice& range = plan.slices[slice].range;
  reading_.push_back({operation, operation->id, slice, range.bytes, AnswerCost(range.blocks)});
  reading_bytes_ += range.bytes;
  asked_cost_ += reading_.back().cost;
  SendFrame(frame);
}

// Answers to reads arrive in request order, so the first entry is always the one concerned.
LaneEngine::ReadSlice LaneEngine::TakeReading() {
  ReadSlice slice = std::move(reading_.front());
  reading_.pop_front();
  reading_bytes_ -= slice.bytes;
  asked_cost_ -= slice.cost;
  return slice;
}

void LaneEngine::Resolve(const OperationRef& operation, const std::optional<Error>& error) {
  // Stop() cannot end the round here: the slice being resolved is still in flight.
  if (error && operation->ledger.Stop(*error)) FERRY_CHECK(false, operation->id);
  if (operation->ledger.Resolve()) owner_->PostRoundDone(operation);
}

void LaneEngine::AbandonReads(const OperationRef& operation) {
  if (incoming_ == Incoming::kRead && !reading_.empty() &&
      reading_.front().operation == operation) {
    DropRest();
    incoming_copy_.reset();
    (void)TakeReading();
    Resolve(operation);
  }
  for (ReadSlice& slice : reading_) {
    if (slice.operation != operation) continue;
    slice.operation.reset();
    Resolve(operation);
  }
}

// ---- frames -------------------------------------------------------------------------------------

LaneEngine::Frame* LaneEngine::NewFrame(wire::Type type, std::uint64_t operation_id) {
  if (free_frames_.empty()) {
    frames_.push_back(std::make_unique<Frame>());
    frames_.back()->place = frames_.size() - 1;
    free_frames_.push_back(frames_.back().get());
  }
  Frame* const frame = free_frames_.back();
  free_frames_.pop_back();
  frame->used = true;
  frame->type = type;
  frame->meta.clear();
  frame->payload.clear();
  frame->payload_bytes = 0;
  frame->may_splice = false;
  frame->given = false;
  frame->unsent = 0;
  frame->plain = false;
  frame->sequenced = false;
  frame->kept = false;
  frame->checked = context_.checksums;
  wire::MessageHeader header;
  header.type = type;
  header.operation = operation_id;
  wire::Append(&frame->meta, header);
  return frame;
}

void LaneEngine::SendFrame(Frame* frame) {
  // Every frame acknowledges all frames that came before it, up to the first refusal that is not
  // sent yet.
  last_acked_ = refusals_.Acknowledgeable(finished_);
  unacked_received_bytes_ = 0;
  std::memcpy(frame->meta.data() + offsetof(wire::MessageHeader, ack), &last_acked_,
              sizeof last_acked_);
  if (frame->checked) {
    const auto flags = static_cast<std::byte>(wire::kChecked);
    std::memcpy(frame->meta.data() + offsetof(wire::MessageHeader, flags), &flags, 1);
    std::byte* const at = frame->meta.data() + offsetof(wire::MessageHeader, meta_crc);
    std::memset(at, 0, sizeof(std::uint32_t));
    const std::uint32_t crc = Crc32c(frame->meta);
    std::memcpy(at, &crc, sizeof crc);
  }
  frame->handed_over = {};
  if (frame->payload_bytes > 0 && ActiveTrace() != nullptr) frame->handed_over = Clock::now();
  lane_->Send(frame);
}

void LaneEngine::TracePayload(const char* what, std::uint64_t bytes,
                              Clock::time_point since) const {
  if (since == Clock::time_point{}) return;
  Trace* const trace = ActiveTrace();
  if (trace == nullptr) return;
  trace->AddInTurn(fmt::format("lane {} {}", index_, what), FormatSize(bytes), since, Clock::now());
}

// Covers the payload; SendFrame computes the CRC of the metadata, which contains this one.
void LaneEngine::Checksum(Frame* frame) {
  if (!frame->checked || frame->payload_bytes == 0) return;
  const std::uint32_t crc = Crc32cOf(frame->payload);
  std::memcpy(frame->meta.data() + offsetof(wire::MessageHeader, crc), &crc, sizeof crc);
}

void LaneEngine::SendSequenced(wire::Type type, std::uint64_t operation_id,
                               std::span<const std::byte> body, std::span<const std::byte> payload,
                               OperationRef operation) {
  if (closed_) {
    if (operation) Resolve(operation, closed_by_);
    return;
  }
  Frame* const frame = NewFrame(type, operation_id);
  frame->meta.insert(frame->meta.end(), body.begin(), body.end());
  if (!payload.empty()) {
    frame->payload.push_back({const_cast<std::byte*>(payload.data()), payload.size()});
    frame->payload_bytes = payload.size();
  }
  unacked_bytes_ += payload.size();
  frame->sequenced = frame->kept = true;
  ++kept_;
  // Frames that answer frames of the peer.
  if (type == wire::Type::kDeclined || type == wire::Type::kShared ||
      type == wire::Type::kUnshared) {
    HoldFrame(frame, kPlainBytes + frame->meta.size());
    kept_bytes_ += frame->held;
  }
  unacked_.push_back({std::move(operation), payload.size(), 0, frame, type == wire::Type::kSend});
  Checksum(frame);
  // Without a lane, the replacement sends it.
  if (up_) SendFrame(frame);
}

void LaneEngine::SendPlain(wire::Type type, std::uint64_t operation_id,
                           std::span<const std::byte> body, std::string_view text) {
  // A plain frame may be lost with its lane: it is repeated, or requested again.
  if (closed_ || !up_) return;
  if (bool* const queued = QueuedFlag(type); queued != nullptr && std::exchange(*queued, true)) {
    ack_due_ |= type == wire::Type::kAck;
    pong_due_ |= type == wire::Type::kPong;
    return;
  }
  if (type == wire::Type::kLaneLost && plain_ >= kMaxPlain) return;  // it is repeated
  Frame* const frame = NewFrame(type, operation_id);
  frame->meta.insert(frame->meta.end(), body.begin(), body.end());
  wire::AppendText(&frame->meta, text);
  frame->plain = true;
  ++plain_;
  HoldFrame(frame, kPlainBytes + frame->meta.size());
  SendFrame(frame);
}

void LaneEngine::OnSent(net::OutFrame* out) {
  auto* const frame = static_cast<Frame*>(out);
  counts_.frames_sent.Add();
  counts_.bytes_sent.Add(frame->meta.size() + frame->payload_bytes);
  counts_.payload_bytes_sent.Add(frame->payload_bytes);
  unsent_bytes_ -= frame->unsent;
  TracePayload("sends", frame->payload_bytes, frame->handed_over);
  const bool kept = frame->kept;  // until settled, possibly below
  if (frame->plain) OnPlainSent(frame->type);
  if (frame->staged && frame->given) {
    unacked_[sent_].staged = std::exchange(frame->staged, nullptr);
  } else {
    LetGoOfSlot(frame);
  }
  if (frame->sequenced) {
    ++sent_;
    SettleFrames();
  }
  if (std::exchange(paused_, false)) lane_->Resume();
  if (!kept) Recycle(frame);
  PumpOnLoop();
}

// ---- acknowledgements ---------------------------------------------------------------------------

void LaneEngine::SendAck() {
  if (refusals_.Acknowledgeable(finished_) != last_acked_) SendPlain(wire::Type::kAck, 0, {});
}

void LaneEngine::FinishedFrame(std::uint64_t payload_bytes) {
  if (landings_.empty()) return CountFinished(payload_bytes);
  landings_.push_back({payload_bytes, 0, nullptr, nullptr});
}

void LaneEngine::CountFinished(std::uint64_t payload_bytes) {
  ++finished_;
  refusals_.Forget(finished_);
  unacked_received_bytes_ += payload_bytes;
  const std::uint64_t slices = std::min(std::max(kAckSlices * payload_bytes, kMinAckBytes),
                                        kAckSlices * context_.config->slice_bytes);
  const std::uint64_t many = std::min(context_.window_bytes / 4, slices);
  if (unacked_received_bytes_ >= many || finished_ - last_acked_ >= kAckFrames) {
    SendAck();
  } else if (!ack_deferred_) {
    // Delayed a moment: it may be carried by another frame, or cover more frames.
    ack_deferred_ = true;
    loop_->DeferOnLoop(EventLoop::Defer::kIdle, this);
  }
}

void LaneEngine::RunDeferredOnLoop(EventLoop::Defer /*when*/) {
  ack_deferred_ = false;
  if (!closed_ && up_) SendAck();
}

void LaneEngine::FlushDueAck() {
  if (closed_ || !up_) return;
  SendAck();
  lane_->Flush();  // includes frames queued before
  if (closed_ || !up_) return;
  // An ACK that was queued earlier may acknowledge less.
  SendAck();
  lane_->Flush();
}

bool LaneEngine::HoldsOperation(const OperationState* operation) const {
  return std::any_of(unacked_.begin(), unacked_.end(),
                     [&](const Unacked& frame) { return frame.operation.get() == operation; });
}

std::uint64_t LaneEngine::Acknowledged() const {
  const std::uint64_t frames = first_unacked_ + static_cast<std::uint64_t>(acked_);
  return closed_ || !up_ ? frames : frames + lane_->Path().acknowledged_bytes;
}

bool LaneEngine::HoldsWork() const {
  const auto waits = [](const auto& one) { return one.operation != nullptr; };
  const auto is_kept = [](const Unacked& frame) { return frame.frame != nullptr; };
  return std::any_of(unacked_.begin(), unacked_.end(), waits) ||
         std::any_of(unacked_.begin(), unacked_.end(), is_kept) ||
         std::any_of(reading_.begin(), reading_.end(), waits);
}

// ---- the end ------------------------------------------------------------------------------------

void LaneEngine::OnClosed(const Error& error) {
  if (!up_) return;  // already frozen
  const net::LaneLoss loss = lane_->loss();
  // The peer has cancelled the attempt that made this lane; the connection is not affected.
  if (!heard_ && (loss == net::LaneLoss::kPeerClosed || loss == net::LaneLoss::kReset)) {
    GoDownOnLoop();
    DropAnswers();
    return owner_->LaneLost(index_, error, std::nullopt);
  }
  if (loss == net::LaneLoss::kReset || loss == net::LaneLoss::kUnreachable) {
    GoDownOnLoop();
    DropAnswers();
    return owner_->LaneLost(index_, error, loss);
  }
  // First, so that no operation fails with the loss of a connection that is still up.
  if (loss == net::LaneLoss::kPeerClosed) {
    owner_->PeerClosedLane(index_, error);
  } else {
    owner_->LaneFailed(error);
  }
  Close(error);
}

void LaneEngine::Close(const Error& error) {
  closing_ = true;
  if (!closed_) AwaitCopies();
  // This side closes: the peer's last frames were processed and their operations succeeded, which
  // the peer must learn before the close.
  if (error.code() == Code::kCancelled) FlushDueAck();
  if (std::exchange(closed_, true)) return;
  up_ = false;
  closed_by_ = error;
  // Unacknowledged data belongs to operations that end now: reset the lane so that the peer does
  // not accept it.
  const bool owes_data = std::any_of(unacked_.begin(), unacked_.end(), [](const Unacked& frame) {
    return frame.operation != nullptr || frame.reply;
  });
  owes_data ? lane_->Abort() : lane_->Close();
  loop_->CancelDeferredOnLoop(this);
  writes_.Clear();
  staged_writes_.Clear();
  reads_.Clear();
  std::vector<OperationRef> late;  // shared with the connection
  for (Unacked& frame : std::exchange(unacked_, {})) {
    if (frame.operation && IsCopyHere(*frame.operation, frame.slice)) {
      late.push_back(std::move(frame.operation));
    } else if (frame.operation) {
      Resolve(frame.operation, error);
    }
    frame.pin.Release();
    LetGoOfSlot(&frame);
  }
  // Shared with the connection, which ends them.
  std::vector<std::pair<OperationRef, std::uint32_t>> unsent;
  DropOutbox(&unsent);
  for (const auto& [operation, slice] : unsent) Resolve(operation, error);
  for (const auto& frame : frames_) LetGoOfSlot(frame.get());
  incoming_copy_.reset();
  given_.Release();
  for (ReadSlice& slice : std::exchange(reading_, {})) {
    if (slice.operation) Resolve(slice.operation, error);
  }
  reading_bytes_ = asked_cost_ = 0;
  DropHeld();
  incoming_region_.Release();
  incoming_receive_.reset();
  if (!late.empty()) return EndLate(std::move(late), error);
  // Posted, because this may be a callback of the lane, which must return before the connection,
  // and the lane with it, can be destroyed.
  owner_->PostLaneClosed(index_);
}

// Ends reads that the peer may be copying into our memory right now: without the lane it cannot
// report when the copy is done.
void LaneEngine::EndLate(std::vector<OperationRef> late, const Error& error) {
  loop_->AddTimerOnLoop(Clock::now() + context_.config->drain_grace + kLateCopies,
                        [self = owner_->KeepAlive(), this, late = std::move(late), error] {
                          for (const auto& operation : late) Resolve(operation, error);
                          owner_->PostLaneClosed(index_);
                        });
}

}  // namespace ferry::transfer
