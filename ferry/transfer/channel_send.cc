#include <algorithm>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/transfer/channel.h"
#include "ferry/transfer/connection_core.h"

namespace ferry::transfer {
namespace {

// How much a lane holds ready for the socket. A slice is pulled late, so that lanes of different
// speed end together; two slices keep the socket from running dry between turns.
constexpr std::uint64_t kUnsentSlices = 2;
constexpr std::size_t kMaxUnacked = 4096;
// After so many slices an acknowledgement no longer waits for an idle moment.
constexpr std::uint64_t kAckSlices = 2;

}  // namespace

Channel::Channel(ConnectionCore* connection, EventLoop* loop, std::uint32_t index)
    : connection_(connection), loop_(loop), index_(index) {}

Channel::~Channel() = default;

void Channel::Adopt(std::unique_ptr<net::Lane> lane) {
  lane_ = std::move(lane);
  lane_->Attach(loop_, this);
}

// ---- slices -------------------------------------------------------------------------------------

void Channel::AddWorkOnLoop(std::shared_ptr<OperationState> operation) {
  if (closed_) return;  // whoever closed us stops the ledger
  (operation->plan->direction == Direction::kWrite ? writes_ : reads_)
      .push_back(std::move(operation));
  PumpOnLoop();
}

// How much of an operation a lane may have under way: what is under way is settled, so near the end
// each lane takes less, and all end together. Given pages fill a socket at once, without a copy to
// slow the first lane down until the others are awake.
std::uint64_t Channel::Share(const OperationState& operation, std::uint64_t least_slices) const {
  const std::uint64_t slice = connection_->config().slice_bytes;
  const std::uint64_t share = operation.ledger.left() * slice / (2 * connection_->lanes());
  return std::min(connection_->window_bytes(), std::max(least_slices * slice, share));
}

bool Channel::MayWrite(const OperationState& operation) const {
  return unsent_bytes_ < kUnsentSlices * connection_->config().slice_bytes &&
         unacked_bytes_ < Share(operation, 2 * kAckSlices) && unacked_.size() < kMaxUnacked;
}

bool Channel::MayRead(const OperationState& operation) const {
  return reading_bytes_ < Share(operation, kUnsentSlices) && reading_.size() < kMaxReplies;
}

// What two sides that both refuse all that the other may have under way have to say; with less,
// each could wait for the other to read.
std::size_t Channel::MostPlainFrames() const {
  return 2 * (kMaxUnacked + kMaxReplies + std::size_t{connection_->config().max_operations});
}

// Round robin over operations, a slice each.
bool Channel::PumpOne(std::deque<std::shared_ptr<OperationState>>* work) {
  std::shared_ptr<OperationState> operation = std::move(work->front());
  work->pop_front();
  const auto slice = operation->ledger.Pull();
  if (!slice) return true;
  const auto index = static_cast<std::uint32_t>(*slice);
  if (work == &writes_) {
    SendWriteSlice(operation, index);
  } else {
    SendReadRequest(operation, index);
  }
  work->push_back(std::move(operation));
  return true;
}

void Channel::PumpOnLoop() {
  while (!closed_ && !writes_.empty() && MayWrite(*writes_.front())) PumpOne(&writes_);
  while (!closed_ && !reads_.empty() && MayRead(*reads_.front())) PumpOne(&reads_);
}

void Channel::SendWriteSlice(const std::shared_ptr<OperationState>& operation,
                             std::uint32_t slice) {
  const Plan& plan = *operation->plan;
  Frame* const frame = NewFrame(wire::Type::kWrite, operation->id);
  AppendSlice(plan, slice, &frame->meta, &frame->payload);
  frame->payload_bytes = plan.slices[slice].range.bytes;
  frame->gift = true;  // the slice is the peer's to acknowledge, and its memory ours until then
  frame->unsent = frame->payload_bytes;
  unsent_bytes_ += frame->unsent;
  unacked_bytes_ += frame->payload_bytes;
  frame->sequenced = true;
  unacked_.push_back({operation, frame->payload_bytes});
  SendFrame(frame);
}

void Channel::SendReadRequest(const std::shared_ptr<OperationState>& operation,
                              std::uint32_t slice) {
  const Plan& plan = *operation->plan;
  Frame* const frame = NewFrame(wire::Type::kReadRequest, operation->id);
  AppendSlice(plan, slice, &frame->meta, nullptr);
  reading_.push_back({operation, operation->id, slice, plan.slices[slice].range.bytes});
  reading_bytes_ += reading_.back().bytes;
  SendFrame(frame);
}

void Channel::Resolve(const std::shared_ptr<OperationState>& operation,
                      const std::optional<Error>& error) {
  // Stop cannot end the round: the slice being resolved is still under way.
  if (error && operation->ledger.Stop(*error)) FERRY_CHECK(false, operation->id);
  if (operation->ledger.Resolve()) connection_->RoundIsOver(operation);
}

void Channel::AbandonReadsOnLoop(const std::shared_ptr<OperationState>& operation) {
  if (incoming_ == Incoming::kRead && !reading_.empty() &&
      reading_.front().operation == operation) {
    DropRest();
    reading_bytes_ -= reading_.front().bytes;
    reading_.pop_front();
    Resolve(operation);
  }
  for (ReadSlice& slice : reading_) {
    if (slice.operation != operation) continue;
    slice.operation.reset();
    Resolve(operation);
  }
}

// ---- frames -------------------------------------------------------------------------------------

Channel::Frame* Channel::NewFrame(wire::Type type, std::uint64_t operation_id) {
  if (free_frames_.empty()) {
    frames_.push_back(std::make_unique<Frame>());
    free_frames_.push_back(frames_.back().get());
  }
  Frame* const frame = free_frames_.back();
  free_frames_.pop_back();
  frame->meta.clear();
  frame->payload.clear();
  frame->payload_bytes = 0;
  frame->gift = false;
  frame->unsent = 0;
  frame->plain = false;
  frame->sequenced = false;
  wire::MessageHeader header;
  header.type = type;
  header.ack = finished_;
  header.operation = operation_id;
  wire::Append(&frame->meta, header);
  return frame;
}

void Channel::SendFrame(Frame* frame) {
  // Every frame carries the acknowledgement of all that came before it.
  told_ = finished_;
  untold_bytes_ = 0;
  lane_->Send(frame);
}

void Channel::SendSequencedOnLoop(wire::Type type, std::uint64_t operation_id,
                                  std::span<const std::byte> body,
                                  std::span<const std::byte> payload,
                                  std::shared_ptr<OperationState> operation) {
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
  frame->sequenced = true;
  unacked_.push_back({std::move(operation), payload.size(), type == wire::Type::kSend});
  SendFrame(frame);
}

void Channel::SendPlainOnLoop(wire::Type type, std::uint64_t operation_id,
                              std::span<const std::byte> body, std::string_view text) {
  if (closed_) return;
  Frame* const frame = NewFrame(type, operation_id);
  frame->meta.insert(frame->meta.end(), body.begin(), body.end());
  wire::AppendText(&frame->meta, text);
  frame->plain = true;
  ++plain_;
  SendFrame(frame);
}

void Channel::OnSent(net::OutFrame* out) {
  auto* const frame = static_cast<Frame*>(out);
  unsent_bytes_ -= frame->unsent;
  if (frame->plain) --plain_;
  if (frame->sequenced) {
    ++sent_;
    SettleFrames();
  }
  if (std::exchange(paused_, false)) lane_->Resume();
  free_frames_.push_back(frame);
  PumpOnLoop();
}

// ---- acknowledgements ---------------------------------------------------------------------------

void Channel::SendAck() { SendPlainOnLoop(wire::Type::kAck, 0, {}); }

void Channel::FinishedFrame(std::uint64_t payload_bytes) {
  ++finished_;
  untold_bytes_ += payload_bytes;
  const std::uint64_t many =
      std::min(connection_->window_bytes() / 4, kAckSlices * connection_->config().slice_bytes);
  if (untold_bytes_ >= many || finished_ - told_ >= kAckFrames) {
    SendAck();
  } else if (!ack_deferred_) {
    // A moment later it may ride on a frame of ours, or cover more frames of theirs.
    ack_deferred_ = true;
    loop_->DeferOnLoop(EventLoop::Defer::kIdle, this);
  }
}

void Channel::RunDeferredOnLoop(EventLoop::Defer /*when*/) {
  ack_deferred_ = false;
  SendDueAckOnLoop();
}

void Channel::SendDueAckOnLoop() {
  if (!closed_ && finished_ != told_) SendAck();
}

// ---- the end ------------------------------------------------------------------------------------

void Channel::OnClosed(const Error& error) {
  // First, so that no operation ends by the loss of a connection that is not lost yet.
  connection_->LaneFailed(error);
  CloseOnLoop(error);
}

void Channel::CloseOnLoop(const Error& error) {
  if (std::exchange(closed_, true)) return;
  closed_by_ = error;
  // What the peer has not acknowledged belongs to operations that end now: it must not take it.
  unacked_.empty() ? lane_->Close() : lane_->Abort();
  loop_->CancelDeferredOnLoop(this);
  writes_.clear();
  reads_.clear();
  for (Unacked& frame : std::exchange(unacked_, {})) {
    if (frame.operation) Resolve(frame.operation, error);
    frame.pin.Release();
  }
  for (ReadSlice& slice : std::exchange(reading_, {})) {
    if (slice.operation) Resolve(slice.operation, error);
  }
  incoming_region_.Release();
  incoming_receive_.reset();
  // By way of the queue: this may be a callback of the lane, which must have returned before the
  // connection, and the lane with it, can go.
  connection_->PostChannelClosed(loop_);
}

}  // namespace ferry::transfer
