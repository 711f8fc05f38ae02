// A TCP lane: receiving, placing and sending frames.
#include "ferry/net/tcp/lane.h"

#include <fmt/core.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "ferry/net/machine/egress.h"
#include "ferry/net/tcp/socket_options.h"

namespace ferry::net::tcp {
namespace {

// Maximum bytes per turn and direction, so that neither direction, and no other lane of the loop,
// waits long.
constexpr std::size_t kTurnBytes = 4 << 20;
// How many bytes of a large payload gather before the lane is woken: waking for each segment costs
// the receiver 10 to 13 % more CPU time (128 KiB to 512 KiB measured alike).
constexpr std::uint64_t kWakeBytes = 512 * 1024;

bool WouldBlock(int error_number) { return error_number == EAGAIN || error_number == EWOULDBLOCK; }

}  // namespace

// ---- life ---------------------------------------------------------------------------------------

TcpLane::TcpLane(UniqueFd fd, std::unique_ptr<ByteStream> stream, LaneInfo info, bool may_splice)
    : fd_(std::move(fd)),
      stream_(std::move(stream)),
      info_(std::move(info)),
      remote_(info_.remote),
      splice_undecided_(may_splice && stream_->is_plain()) {
  listed_.emplace(fd_.get());
}

TcpLane::~TcpLane() { CloseNow(EndsByReset()); }

bool TcpLane::EndsByReset() const noexcept {
  return output_.has_spliced() || !output_.empty() || input_.state() == FrameInput::State::kPayload;
}

void TcpLane::Attach(EventLoop* loop, LaneHandler* handler) {
  if (loop_ != nullptr && fd_) {
    loop_->UnwatchOnLoop(fd_.get(), this);
    loop_->CancelDeferredOnLoop(this);
  }
  (void)input_.Resume();
  const bool here = loop->InLoop();
  loop_ = loop;
  handler_ = handler;
  if (here) {
    WatchOnLoop();
  } else {
    // Not inside Attach(), so that the lane can end at once, before the user's next task.
    loop->Post([this] {
      WatchOnLoop();
      if (fd_ && doom_) Fail(LaneLoss::kBroken, Error(*doom_));
    });
  }
}

void TcpLane::WatchOnLoop() {
  if (!fd_) return;
  flush_requested_ = next_turn_requested_ = false;
  // Neither Attach() nor Send() calls back from inside.
  if (auto watched = loop_->WatchOnLoop(fd_.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP, this);
      !watched) {
    doom_ = watched.error();
  }
  if (!output_.empty()) RequestFlush();
  const bool holds_input = stream_->HoldsInput();
  if (holds_input) readable_ = true;
  if (holds_input || input_.buffered() > 0 || doom_) RequestNextTurn();
}

void TcpLane::Flush() {
  if (fd_) FlushOnLoop();
}

// A partly received payload is no reason for a reset, which would discard what we sent before;
// nothing more is placed in its memory anyway.
void TcpLane::Close(Closing how) { CloseNow(/*reset=*/how == Closing::kAbort || !output_.empty()); }

// A reset drops what both kernels still hold: spliced pages must not be read any more, and the peer
// must not receive frames queued for an operation that has ended.
void TcpLane::CloseNow(bool reset) {
  if (!fd_) return;
  if (loop_ != nullptr) {
    loop_->UnwatchOnLoop(fd_.get(), this);
    loop_->CancelDeferredOnLoop(this);
  }
  if (reset) {
    ResetConnection(fd_.get());
  } else {
    stream_->SayEnd();
    // Shut down first: with unread input, close() alone would send a reset instead of the end of
    // the stream, and discard what we sent before. Both directions: if another process holds the
    // descriptor, input that arrives from now on is still answered by a reset.
    (void)::shutdown(fd_.get(), SHUT_RDWR);
  }
  listed_.reset();
  fd_.reset();
  output_.Clear();
}

bool TcpLane::ProvePeer(const ProcessHint& process) {
  if (process.pid == 0 || !fd_ || !info_.same_machine) return false;
  if (process != proved_) {
    if (!IsHeldBy(process, fd_.get())) return false;
    proved_ = process;
  }
  if (std::exchange(splice_undecided_, false)) output_.AllowSplices();
  return true;
}

// By the time that an honest peer acknowledges a frame, its kernel has acknowledged the bytes: the
// acknowledgement comes in the same or a later segment.
bool TcpLane::HasDelivered(std::uint64_t position) const {
  int waiting = 0;  // bytes that the peer's kernel has not acknowledged
  if (!fd_ || ::ioctl(fd_.get(), SIOCOUTQ, &waiting) != 0) return true;
  return position + static_cast<std::uint64_t>(waiting) <= output_.accepted();
}

void TcpLane::Fail(LaneLoss loss, const Error& error) {
  CloseNow(EndsByReset());
  LaneHandler* const handler = std::exchange(handler_, nullptr);
  if (handler != nullptr) handler->OnClosed(loss, error);
}

LaneInfo TcpLane::Info() const {
  // The interface is the one found at connect time: a socket that was reset no longer knows its
  // route.
  LaneInfo info = info_;
  DescribeBuffers(fd_.get(), &info);
  stream_->Describe(&info);
  return info;
}

void TcpLane::FailBySocket(const char* what, int error_number) {
  stream_->FindReason();
  if (const auto* failure = stream_->failure()) {
    return Fail(LaneLoss::kBroken,
                Error(failure->code, fmt::format("{} {}: {}", what, remote_, failure->text)));
  }
  const Error plain = ErrnoError(fmt::format("{} {}", what, remote_), error_number);
  if (error_number == EFAULT) {
    return Fail(
        LaneLoss::kBroken,
        Error(Code::kInvalidArgument,
              plain.message() + "; memory given to this connection is no longer mapped, or its "
                                "file was cut or has no room: keep it valid until operations end"));
  }
  const bool reset =
      error_number == ECONNRESET || error_number == EPIPE || error_number == ECONNABORTED;
  Fail(reset ? LaneLoss::kReset : LaneLoss::kUnreachable,
       Error(Code::kPeerLost, plain.message() + "; reconnect when the peer is back"));
}

void TcpLane::OnEvents(std::uint32_t events) {
  if ((events & EPOLLERR) != 0 && FailIfReset()) return;
  if ((events & (EPOLLRDHUP | EPOLLHUP)) != 0) hung_up_ = true;
  if ((events & EPOLLOUT) != 0) {
    writable_ = true;
    if (!output_.empty()) RequestFlush();
  }
  if ((events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP)) != 0) {
    readable_ = true;
    ReceiveOnLoop();
  }
}

// A peer that reset the connection has abandoned the operation whose bytes may still be in our
// receive buffer; after a zero-copy send it may have changed their pages. So check before each read
// into the destination: this process may have been stopped since the last check.
bool TcpLane::FailIfReset() {
  int error = 0;
  socklen_t length = sizeof error;
  (void)::getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error == 0 || ReadsToTheEnd(error)) return false;
  FailBySocket("the connection failed to", error);
  return true;
}

// EPIPE: the peer had closed in good order before it reset what we sent since. Its earlier data is
// valid and may complete the operation, so read on to the end of the stream.
bool TcpLane::ReadsToTheEnd(int error_number) {
  if (error_number != EPIPE || input_.state() == FrameInput::State::kPaused) return false;
  hung_up_ = readable_ = true;
  writable_ = false;
  RequestNextTurn();
  return true;
}

// ---- receiving ----------------------------------------------------------------------------------

void TcpLane::ReceiveOnLoop() {
  std::size_t budget = kTurnBytes;
  while (fd_ && ParseBuffered()) {
    if (!readable_) return;
    const std::uint64_t before = BytesReceived();
    if (!ReadOnce()) return;
    const auto moved = static_cast<std::size_t>(BytesReceived() - before);
    const std::size_t work = std::max({moved, stream_->TakeWork(), std::size_t{1}});
    if (budget <= work) {
      RequestNextTurn();
      return;
    }
    budget -= work;
  }
}

bool TcpLane::ReadOnce() {
  if (input_.state() == FrameInput::State::kPayload && FailIfReset()) return false;
  looked_for_reset_ = false;
  return AfterRead(input_.Read(stream_.get()));
}

void TcpLane::SleepUntilMore() {
  readable_ = false;
  WakeFor(input_.state() == FrameInput::State::kFrame ? 0 : input_.payload_left());
}

// The socket reports no input until this many bytes have arrived, its buffer is full, or the peer
// has closed.
void TcpLane::WakeFor(std::uint64_t bytes) {
  const bool soon = bytes < kReadAhead || !stream_->is_plain();
  const int wanted = soon ? 1 : static_cast<int>(std::min(bytes, kWakeBytes));
  if (wanted == wake_bytes_) return;
  wake_bytes_ = wanted;
  (void)::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof wanted);
}

void TcpLane::Poke() {
  if (!fd_ || wake_bytes_ == 1) return;
  WakeFor(0);
  readable_ = true;
  RequestNextTurn();
}

bool TcpLane::AfterRead(ssize_t got) {
  if (got > 0) {
    bytes_received_.fetch_add(static_cast<std::uint64_t>(got), std::memory_order_relaxed);
    // No event follows a hang-up, so keep reading to the end.
    if (stream_->drained() && !hung_up_) SleepUntilMore();
    return true;
  }
  if (got == 0) {
    const bool whole = input_.state() == FrameInput::State::kFrame && input_.buffered() == 0;
    Fail(LaneLoss::kPeerClosed,
         Error(Code::kPeerLost,
               fmt::format("{} closed the connection{}; reconnect when the peer is back", remote_,
                           whole ? "" : " in the middle of a frame")));
    return false;
  }
  if (errno == EINTR) return true;
  if (!WouldBlock(errno)) {
    FailBySocket("reading failed from", errno);
    return false;
  }
  SleepUntilMore();
  return false;
}

bool TcpLane::ParseBuffered() {
  while (input_.state() != FrameInput::State::kPaused) {
    if (input_.state() == FrameInput::State::kFrame) {
      if (!StartFrame()) return fd_ && input_.state() == FrameInput::State::kFrame;
      continue;
    }
    if (!input_.TakeBuffered()) return true;
    if (!FinishPayload()) return false;
  }
  return false;
}

bool TcpLane::FinishPayload() {
  if (auto done = handler_->OnPayload(); !done) {
    if (fd_) Fail(LaneLoss::kBroken, done.error());
    return false;
  }
  return static_cast<bool>(fd_);
}

bool TcpLane::StartFrame() {
  const auto head = input_.NextHead(remote_);
  if (!head) {
    Fail(LaneLoss::kBroken, head.error());
    return false;
  }
  if (!*head) return false;
  auto placed = handler_->OnFrame((*head)->meta, (*head)->payload_bytes);
  if (!fd_) return false;
  if (!placed) {
    Fail(LaneLoss::kBroken, placed.error());
    return false;
  }
  if (placed->action == Placement::Action::kPause) {
    input_.Pause();
    return false;
  }
  if (placed->registered.memory != nullptr || placed->gpu) {
    Fail(LaneLoss::kBroken,
         placed->gpu ? GpuMemoryUnsupported("tcp") : RegisteredMemoryUnsupported("tcp"));
    return false;
  }
  input_.Begin(**head, *placed);
  if (input_.state() == FrameInput::State::kFrame) return true;
  const bool revocable = placed->revocable || input_.payload_left() >= kSpliceFrom;
  if (revocable && input_.buffered() > 0 && !looked_for_reset_) {
    if (FailIfReset()) return false;
    looked_for_reset_ = true;
  }
  return true;
}

void TcpLane::Resume() {
  if (input_.Resume()) RequestNextTurn();
}

void TcpLane::DiscardRest() { input_.DiscardRest(); }

// ---- sending ------------------------------------------------------------------------------------

void TcpLane::Send(OutFrame* frame) {
  if (!fd_ || doom_) return;
  if (frame->registered.memory != nullptr) {
    doom_ = RegisteredMemoryUnsupported("tcp");
    return RequestNextTurn();
  }
  if (splice_undecided_ && frame->may_splice && frame->payload_bytes >= kSpliceFrom &&
      !ProvePeer(claimed_)) {
    splice_undecided_ = false;
    if (LeavesThroughDevice(fd_.get())) output_.AllowSplices();
  }
  output_.Push(frame);
  RequestFlush();
}

void TcpLane::RequestFlush() {
  if (flush_requested_ || !writable_) return;
  flush_requested_ = true;
  loop_->DeferOnLoop(EventLoop::Defer::kTurnEnd, this);
}

void TcpLane::RequestNextTurn() {
  if (!fd_ || next_turn_requested_) return;
  next_turn_requested_ = true;
  loop_->DeferOnLoop(EventLoop::Defer::kNextTurn, this);
}

void TcpLane::RunDeferredOnLoop(EventLoop::Defer when) {
  if (when == EventLoop::Defer::kTurnEnd) {
    flush_requested_ = false;
    FlushOnLoop();
    return;
  }
  next_turn_requested_ = false;
  if (doom_) return Fail(LaneLoss::kBroken, Error(*doom_));
  if (output_.has_unsent()) RequestFlush();
  ReceiveOnLoop();
}

void TcpLane::FlushOnLoop() {
  std::size_t budget = kTurnBytes;
  while (fd_ && output_.has_unsent()) {
    const ssize_t sent = output_.SendSome(stream_.get(), fd_.get());
    if (sent < 0) {
      if (errno == EINTR) continue;
      const int error = errno;
      const bool goes_on = WouldBlock(error) || ReadsToTheEnd(error);
      if (!goes_on) return FailBySocket("writing failed to", error);
      writable_ = false;
      break;
    }
    if (static_cast<std::size_t>(sent) >= budget) {
      RequestNextTurn();
      break;
    }
    budget -= static_cast<std::size_t>(sent);
  }
  // The handler may close the lane, which then has no sent frames left.
  while (OutFrame* const frame = output_.TakeSent()) handler_->OnSent(frame);
}

}  // namespace ferry::net::tcp
