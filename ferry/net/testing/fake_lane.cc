// A lane of the in-memory network.
#include "ferry/net/testing/fake_lane.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ferry/core/check.h"

namespace ferry::net {
namespace {

constexpr std::size_t kChunkBytes = 256 << 10;
constexpr std::size_t kDiscardBytes = 64 << 10;

std::uint64_t BytesOf(std::span<const iovec> pieces) {
  std::uint64_t bytes = 0;
  for (const iovec& piece : pieces) bytes += piece.iov_len;
  return bytes;
}

std::span<const std::byte> PieceOf(const auto& queued, std::size_t index) {
  if (index == 0) return std::as_bytes(std::span(&queued.prefix, 1));
  if (index == 1) return queued.frame->meta;
  const iovec piece = queued.payload()[index - 2];
  return {static_cast<const std::byte*>(piece.iov_base), piece.iov_len};
}

// Where registered memory lies; nowhere if the range names none.
iovec MemoryOf(const RegisteredRange& range) {
  if (range.memory == nullptr) return {};
  const auto* const fake = dynamic_cast<const FakeRegisteredMemory*>(range.memory);
  FERRY_CHECK(fake != nullptr);  // another provider's
  FERRY_CHECK(range.offset <= fake->memory.size(), range.offset, fake->memory.size());
  FERRY_CHECK(range.bytes <= fake->memory.size() - range.offset, range.offset, range.bytes);
  return {fake->memory.data() + range.offset, range.bytes};
}

// Destruction and Attach() are not allowed inside a callback.
class Calling {
 public:
  explicit Calling(bool* flag) : flag_(flag), before_(std::exchange(*flag, true)) {}
  ~Calling() { *flag_ = before_; }
  Calling(const Calling&) = delete;
  Calling& operator=(const Calling&) = delete;

 private:
  bool* flag_;
  bool before_;
};

}  // namespace

// ---- life ---------------------------------------------------------------------------------------

FakeLane::FakeLane(std::shared_ptr<FakeLink> link, FakeLink::Side side, std::string local,
                   std::string remote)
    : link_(std::move(link)),
      side_(side),
      local_(std::move(local)),
      remote_(std::move(remote)),
      buffer_(sizeof(Prefix)) {}

FakeLane::~FakeLane() {
  FERRY_CHECK(!in_callback_);
  LeaveLoop(/*reset=*/!queue_.empty() || receiving_ == Receiving::kPayload);
}

void FakeLane::CheckUse() const { FERRY_CHECK(loop_ != nullptr && loop_->InLoop(), remote_); }

void FakeLane::Attach(EventLoop* loop, LaneHandler* handler) {
  if (loop_ != nullptr) {
    CheckUse();
    FERRY_CHECK(!in_callback_ && receiving_ != Receiving::kPayload, remote_);
    loop_->CancelDeferredOnLoop(this);
    if (timer_ != 0) loop_->CancelTimerOnLoop(std::exchange(timer_, 0));
  }
  flush_requested_ = next_turn_requested_ = false;
  if (receiving_ == Receiving::kPaused) receiving_ = Receiving::kOffer;
  loop_ = loop;
  handler_ = handler;
  // Bind last: the new loop may use this object immediately afterwards.
  if (!closed_) link_->Bind(side_, loop, this);
}

void FakeLane::Close(Closing how) {
  CheckUse();
  LeaveLoop(/*reset=*/how == Closing::kAbort || !queue_.empty());
}

void FakeLane::Flush() {
  CheckUse();
  if (!closed_) FlushOnLoop();
}

// As with TCP, an unfinished frame never arrives as a whole one, and frames reported as sent still
// arrive unless the connection is reset.
void FakeLane::LeaveLoop(bool reset) {
  if (std::exchange(closed_, true)) return;
  if (loop_ != nullptr) {
    loop_->CancelDeferredOnLoop(this);
    if (timer_ != 0) loop_->CancelTimerOnLoop(std::exchange(timer_, 0));
  }
  link_->Close(side_, reset);
  queue_.clear();
  written_ = 0;
}

void FakeLane::Fail(LaneLoss loss, const Error& error) {
  LeaveLoop(/*reset=*/!queue_.empty() || receiving_ == Receiving::kPayload);
  LaneHandler* const handler = std::exchange(handler_, nullptr);
  const Calling calling(&in_callback_);
  handler->OnClosed(loss, error);
}

LaneInfo FakeLane::Info() const {
  LaneInfo info;
  info.local = local_;
  info.remote = remote_;
  info.interface = link_->interface();
  info.same_machine = !link_->another_machine();
  info.authenticated = link_->authenticated();
  info.congestion_control = "none (in memory)";
  info.send_buffer_bytes = info.recv_buffer_bytes = link_->pipe_bytes();
  return info;
}

void FakeLane::OnWake() {
  if (const auto loss = link_->Failed(side_)) {
    const char* const how = *loss == LaneLoss::kReset ? " was reset" : " timed out";
    return Fail(*loss, Error(Code::kPeerLost, "the connection to " + remote_ + how +
                                                  "; reconnect when the peer is back"));
  }
  if (!queue_.empty()) RequestFlush();
  if (!next_turn_requested_) ReceiveOnLoop();
}

void FakeLane::RequestFlush() {
  if (std::exchange(flush_requested_, true)) return;
  loop_->DeferOnLoop(EventLoop::Defer::kTurnEnd, this);
}

void FakeLane::RequestNextTurn() {
  if (closed_ || std::exchange(next_turn_requested_, true)) return;
  loop_->DeferOnLoop(EventLoop::Defer::kNextTurn, this);
}

void FakeLane::RunDeferredOnLoop(EventLoop::Defer when) {
  if (when == EventLoop::Defer::kTurnEnd) {
    flush_requested_ = false;
    return FlushOnLoop();
  }
  next_turn_requested_ = false;
  if (!queue_.empty()) RequestFlush();
  ReceiveOnLoop();
}

// ---- receiving ----------------------------------------------------------------------------------

void FakeLane::ReceiveOnLoop() {
  std::size_t budget = link_->TurnBytes(side_);
  while (!closed_ && receiving_ != Receiving::kPaused) {
    if (receiving_ == Receiving::kOffer) {
      Offer();
      continue;
    }
    if (budget == 0) return RequestNextTurn();
    std::span<std::byte> target = Target();
    target = target.first(std::min(target.size(), budget));
    const FakeLink::Taken taken = link_->Take(side_, target);
    if (taken.state != FakeLink::Taken::State::kBytes) return WaitFor(taken);
    budget -= taken.bytes;
    bytes_received_.fetch_add(taken.bytes, std::memory_order_relaxed);
    Advance(taken.bytes);
  }
}

void FakeLane::WaitFor(const FakeLink::Taken& taken) {
  if (taken.state == FakeLink::Taken::State::kEnd) {
    const bool whole = receiving_ == Receiving::kPrefix && filled_ == 0;
    return Fail(LaneLoss::kPeerClosed,
                Error(Code::kPeerLost, remote_ + " closed the connection" +
                                           (whole ? "" : " in the middle of a frame") +
                                           "; reconnect when the peer is back"));
  }
  if (taken.state == FakeLink::Taken::State::kLater && timer_ == 0) {
    timer_ = loop_->AddTimerOnLoop(taken.when, [this] {
      timer_ = 0;
      OnWake();
    });
  }
}

// Where the next received bytes are stored.
std::span<std::byte> FakeLane::Target() {
  if (receiving_ == Receiving::kDiscard) {
    return std::span(buffer_).first(std::min<std::uint64_t>(buffer_.size(), payload_left_));
  }
  if (receiving_ == Receiving::kPayload) {
    const iovec& piece = place_.front();
    return std::span(static_cast<std::byte*>(piece.iov_base), piece.iov_len).subspan(filled_);
  }
  return std::span(buffer_).subspan(filled_);
}

void FakeLane::Advance(std::size_t bytes) {
  switch (receiving_) {
    case Receiving::kPrefix:
      filled_ += bytes;
      if (filled_ < sizeof prefix_) return;
      std::memcpy(&prefix_, buffer_.data(), sizeof prefix_);
      if (prefix_.meta_bytes > max_meta_) {
        return Fail(LaneLoss::kBroken,
                    Error(Code::kCorrupt, remote_ + " announced more metadata than is allowed"));
      }
      buffer_.resize(prefix_.meta_bytes);
      filled_ = 0;
      receiving_ = Receiving::kMeta;
      return;
    case Receiving::kMeta:
      filled_ += bytes;
      if (filled_ == buffer_.size()) receiving_ = Receiving::kOffer;
      return;
    case Receiving::kPayload:
      filled_ += bytes;
      payload_left_ -= bytes;
      if (filled_ == place_.front().iov_len) {
        place_ = place_.subspan(1);
        filled_ = 0;
      }
      if (payload_left_ == 0) FinishPayload();
      return;
    case Receiving::kDiscard:
      payload_left_ -= bytes;
      if (payload_left_ == 0) FinishPayload();
      return;
    case Receiving::kOffer:
    case Receiving::kPaused: return;
  }
}

void FakeLane::Offer() {
  const Calling calling(&in_callback_);
  const auto placed = handler_->OnFrame(buffer_, prefix_.payload_bytes);
  if (closed_) return;
  if (!placed) return Fail(LaneLoss::kBroken, placed.error());
  if (placed->action == Placement::Action::kPause) {
    receiving_ = Receiving::kPaused;
  } else if (prefix_.payload_bytes == 0) {
    StartPrefix();
  } else if (placed->gpu) {
    Fail(LaneLoss::kBroken, GpuMemoryUnsupported("fake"));
  } else {
    StartPayload(*placed);
  }
}

void FakeLane::StartPayload(const Placement& placement) {
  payload_left_ = prefix_.payload_bytes;
  filled_ = 0;
  if (placement.action == Placement::Action::kPlace) {
    place_ = placement.memory;
    if (placement.registered.memory != nullptr) {
      FERRY_CHECK(placement.memory.empty());
      registered_place_ = MemoryOf(placement.registered);
      place_ = std::span(&registered_place_, 1);
    }
    FERRY_CHECK(BytesOf(place_) == payload_left_, BytesOf(place_), payload_left_);
    for (const iovec& piece : place_) FERRY_CHECK(piece.iov_len > 0);
    receiving_ = Receiving::kPayload;
  } else {
    buffer_.resize(kDiscardBytes);
    receiving_ = Receiving::kDiscard;
  }
}

void FakeLane::FinishPayload() {
  StartPrefix();
  const Calling calling(&in_callback_);
  const Status done = handler_->OnPayload();
  if (!done && !closed_) Fail(LaneLoss::kBroken, done.error());
}

void FakeLane::StartPrefix() {
  receiving_ = Receiving::kPrefix;
  buffer_.resize(sizeof(Prefix));
  filled_ = 0;
}

void FakeLane::Resume() {
  CheckUse();
  if (closed_ || receiving_ != Receiving::kPaused) return;
  receiving_ = Receiving::kOffer;
  RequestNextTurn();
}

void FakeLane::DiscardRest() {
  CheckUse();
  if (receiving_ != Receiving::kPayload) return;
  buffer_.resize(kDiscardBytes);
  receiving_ = Receiving::kDiscard;
}

// ---- sending ------------------------------------------------------------------------------------

void FakeLane::Send(OutFrame* frame) {
  CheckUse();
  FERRY_CHECK(!frame->meta.empty() && frame->meta.size() <= kMaxMetaBytes, frame->meta.size());
  FERRY_CHECK(frame->payload_bytes <= kMaxPayloadBytes, frame->payload_bytes);
  const Queued queued{
      frame, {frame->meta.size(), frame->payload_bytes}, MemoryOf(frame->registered)};
  FERRY_CHECK(frame->registered.memory == nullptr || frame->payload.empty());
  FERRY_CHECK(BytesOf(queued.payload()) == frame->payload_bytes, frame->payload_bytes);
  for (const iovec& piece : queued.payload()) FERRY_CHECK(piece.iov_len > 0);
  if (closed_) return;
  queue_.push_back(queued);
  RequestFlush();
}

void FakeLane::FlushOnLoop() {
  std::size_t budget = kTurnBytes;
  while (written_ < queue_.size()) {
    if (budget == 0) {
      RequestNextTurn();
      break;
    }
    const std::size_t room = link_->Room(side_, std::min(budget, kChunkBytes));
    if (room == 0) break;
    auto bytes = Gather(room);
    budget -= bytes.size();
    link_->Write(side_, std::move(bytes));
  }
  while (!closed_ && written_ > 0) {
    OutFrame* const frame = queue_.front().frame;
    queue_.pop_front();
    --written_;
    const Calling calling(&in_callback_);
    handler_->OnSent(frame);
  }
}

std::vector<std::byte> FakeLane::Gather(std::size_t most) {
  std::vector<std::byte> bytes;
  bytes.reserve(most);
  while (written_ < queue_.size() && bytes.size() < most) {
    const Queued& queued = queue_[written_];
    auto piece = PieceOf(queued, piece_).subspan(piece_offset_);
    piece = piece.first(std::min(piece.size(), most - bytes.size()));
    bytes.insert(bytes.end(), piece.begin(), piece.end());
    piece_offset_ += piece.size();
    if (piece_offset_ < PieceOf(queued, piece_).size()) continue;
    piece_offset_ = 0;
    if (++piece_ < 2 + queued.payload().size()) continue;
    piece_ = 0;
    ++written_;
  }
  return bytes;
}

}  // namespace ferry::net
