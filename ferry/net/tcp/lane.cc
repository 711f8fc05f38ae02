// A TCP lane: receiving, placing and sending frames.
#include "ferry/net/tcp/lane.h"

#include <fmt/core.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/net/tcp/socket_options.h"
#include "ferry/net/tcp/tls_failure.h"

namespace ferry::net::tcp {
namespace {

constexpr std::size_t kReadAhead = 64 * 1024;
constexpr std::size_t kRxBytes = sizeof(FramePrefix) + kMaxMetaBytes + kReadAhead;
// Initial size of the receive buffer, until a read fills it, and its only size while the peer is
// pending.
constexpr std::size_t kSmallRxBytes = kPendingPeerLaneBytes;
static_assert(kSmallRxBytes >= 2 * (sizeof(FramePrefix) + kMaxPendingPeerMeta));
// After a large payload, only the next frame's head is worth reading ahead: another large frame is
// likely to follow, and payload bytes that land in rx_ are copied once more.
constexpr std::size_t kReadAheadAfterLarge = 2 * 1024;
constexpr std::size_t kLargePayload = 64 * 1024;
// Maximum bytes per turn and direction, so that neither direction, and no other lane of the loop,
// waits long.
constexpr std::size_t kTurnBytes = 4 << 20;
// Maximum bytes per system call: 256 KiB to 1 MiB is best on loopback; 64 KiB costs 16 %.
constexpr std::size_t kSendBytes = 1 << 20;
constexpr std::size_t kMaxPieces = 256;
// Zero-copy sends are used when at least this much is left to send, in pieces of at least this
// average size; docs/results.md has the gain.
constexpr std::size_t kSpliceFrom = 64 * 1024;
constexpr std::size_t kSplicePiece = 8 * 1024;
// How many bytes of a large payload gather before the lane is woken: waking for each segment costs
// the receiver 10 to 13 % more CPU time (128 KiB to 512 KiB measured alike).
constexpr std::uint64_t kWakeBytes = 512 * 1024;

std::string HexOf(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte b : bytes) text += fmt::format("{:02x} ", std::to_integer<int>(b));
  if (!text.empty()) text.pop_back();
  return text;
}

bool WouldBlock(int error_number) { return error_number == EAGAIN || error_number == EWOULDBLOCK; }

}  // namespace

// ---- life ---------------------------------------------------------------------------------------

TcpLane::TcpLane(UniqueFd fd, std::unique_ptr<ByteStream> stream, LaneInfo info, bool may_splice)
    : fd_(std::move(fd)),
      stream_(std::move(stream)),
      info_(std::move(info)),
      remote_(info_.remote),
      may_splice_(may_splice && stream_->is_plain()) {}

TcpLane::~TcpLane() { CloseNow(/*reset=*/given_ || !queue_.empty() || InPayload()); }

void TcpLane::Attach(EventLoop* loop, LaneHandler* handler) {
  if (loop_ != nullptr && fd_) {
    loop_->UnwatchOnLoop(fd_.get(), this);
    loop_->CancelDeferredOnLoop(this);
  }
  if (receiving_ == Receiving::kPaused) receiving_ = Receiving::kFrame;
  const bool here = loop->InLoop();
  loop_ = loop;
  handler_ = handler;
  if (here) {
    WatchOnLoop();
  } else {
    loop->Post([this] { WatchOnLoop(); });
  }
}

void TcpLane::WatchOnLoop() {
  if (!fd_) return;
  if (auto watched = loop_->WatchOnLoop(fd_.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP, this);
      !watched) {
    Fail(LaneLoss::kBroken, watched.error());
    return;
  }
  flush_requested_ = next_turn_requested_ = false;
  if (!queue_.empty()) RequestFlush();
  const bool holds_input = stream_->HoldsInput();
  if (holds_input) readable_ = true;
  if (holds_input || buffered() > 0 || refused_) RequestNextTurn();
}

void TcpLane::Flush() {
  if (fd_) FlushOnLoop();
}

// A partly received payload is no reason for a reset, which would discard what we sent before;
// nothing more is placed in its memory anyway.
void TcpLane::Close(Closing how) { CloseNow(/*reset=*/how == Closing::kAbort || !queue_.empty()); }

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
  fd_.reset();
  splice_pipe_.reset();
  queue_.clear();
  sent_frames_ = 0;
}

void TcpLane::Fail(LaneLoss loss, const Error& error) {
  CloseNow(/*reset=*/given_ || !queue_.empty() || InPayload());
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
    if (!queue_.empty()) RequestFlush();
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
  if (error_number != EPIPE || receiving_ == Receiving::kPaused) return false;
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
    if (budget <= moved) {
      RequestNextTurn();
      return;
    }
    budget -= std::max<std::size_t>(moved, 1);
  }
}

bool TcpLane::ReadOnce() {
  if (receiving_ == Receiving::kPayload) return !FailIfReset() && ReadIntoPayload();
  if (receiving_ == Receiving::kDiscard) return DiscardFromSocket();
  return ReadIntoBuffer();
}

bool TcpLane::ReadIntoPayload() {
  std::array<iovec, kMaxPieces + 1> pieces;
  std::size_t used = 0;
  const std::size_t direct =
      place_.Collect(std::span(pieces.data(), kMaxPieces), &used, payload_left_);
  rx_begin_ = rx_end_ = 0;
  looked_for_reset_ = false;
  std::size_t asked = direct;
  if (direct == payload_left_) {
    const std::size_t ahead = payload_left_ >= kLargePayload ? kReadAheadAfterLarge : kReadAhead;
    GrowBuffer(ahead);
    pieces[used++] = {rx_.get(), ahead};
    asked += ahead;
  }
  const ssize_t got = stream_->Readv(std::span(pieces.data(), used), asked);
  if (got > 0) {
    const auto placed = std::min(static_cast<std::size_t>(got), direct);
    place_.Advance(placed);
    payload_left_ -= placed;
    rx_end_ = static_cast<std::size_t>(got) - placed;
  }
  return AfterRead(got);
}

void TcpLane::SleepUntilMore() {
  readable_ = false;
  WakeFor(receiving_ == Receiving::kFrame ? 0 : payload_left_);
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

bool TcpLane::DiscardFromSocket() {
  const std::size_t asked = std::min<std::uint64_t>(payload_left_, kTurnBytes);
  const ssize_t got = stream_->Discard(asked);
  if (got > 0) payload_left_ -= static_cast<std::size_t>(got);
  return AfterRead(got);
}

bool TcpLane::ReadIntoBuffer() {
  if (rx_begin_ > 0) {
    std::memmove(rx_.get(), rx_.get() + rx_begin_, buffered());
    rx_end_ -= rx_begin_;
    rx_begin_ = 0;
  }
  GrowBuffer(rx_filled_ && max_meta_ == kMaxMetaBytes ? kRxBytes : kSmallRxBytes);
  const bool head_only = after_large_ && rx_end_ == 0;
  const std::size_t asked = head_only ? kReadAheadAfterLarge : rx_bytes_ - rx_end_;
  const iovec free{rx_.get() + rx_end_, asked};
  const ssize_t got = stream_->Readv({&free, 1}, asked);
  if (got > 0) rx_end_ += static_cast<std::size_t>(got);
  rx_filled_ = rx_end_ == rx_bytes_;
  looked_for_reset_ = false;
  return AfterRead(got);
}

void TcpLane::GrowBuffer(std::size_t bytes) {
  if (bytes <= rx_bytes_) return;
  rx_bytes_ = bytes <= kSmallRxBytes ? kSmallRxBytes : kRxBytes;
  std::unique_ptr<std::byte[]> larger(new std::byte[rx_bytes_]);
  const auto kept = Buffered();
  std::copy(kept.begin(), kept.end(), larger.get());
  rx_end_ = kept.size();
  rx_begin_ = 0;
  rx_ = std::move(larger);
}

bool TcpLane::AfterRead(ssize_t got) {
  if (got > 0) {
    bytes_received_.fetch_add(static_cast<std::uint64_t>(got), std::memory_order_relaxed);
    // No event follows a hang-up, so keep reading to the end.
    if (stream_->drained() && !hung_up_) SleepUntilMore();
    return true;
  }
  if (got == 0) {
    const bool whole = receiving_ == Receiving::kFrame && buffered() == 0;
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
  while (receiving_ != Receiving::kPaused) {
    if (receiving_ == Receiving::kFrame) {
      if (!StartFrame()) return fd_ && receiving_ == Receiving::kFrame;
      continue;
    }
    TakeBufferedPayload();
    if (payload_left_ > 0) return true;
    if (!FinishPayload()) return false;
  }
  return false;
}

void TcpLane::TakeBufferedPayload() {
  const std::size_t n = std::min<std::uint64_t>(buffered(), payload_left_);
  if (receiving_ == Receiving::kPayload) place_.CopyIn(Buffered().first(n));
  rx_begin_ += n;
  payload_left_ -= n;
}

bool TcpLane::FinishPayload() {
  receiving_ = Receiving::kFrame;
  if (auto done = handler_->OnPayload(); !done) {
    if (fd_) Fail(LaneLoss::kBroken, done.error());
    return false;
  }
  return static_cast<bool>(fd_);
}

bool TcpLane::StartFrame() {
  if (LooksLikeTls(Buffered())) {
    Fail(LaneLoss::kBroken,
         Error(Code::kCorrupt,
               fmt::format("{} speaks TLS here, where none is expected; set FERRY_TLS to the same, "
                           "off, psk or cert, on both sides",
                           remote_)));
    return false;
  }
  if (buffered() < sizeof(FramePrefix)) return false;
  FramePrefix prefix;
  std::memcpy(&prefix, Buffered().data(), sizeof prefix);
  if (prefix.magic != FramePrefix::kMagic) {
    Fail(LaneLoss::kBroken,
         Error(Code::kCorrupt,
               fmt::format("{} sent bytes that are no ferry frame (they begin {}); check that the "
                           "address is that of a Tensorferry endpoint",
                           remote_, HexOf(Buffered().first(8)))));
    return false;
  }
  if (prefix.meta_bytes == 0 || prefix.meta_bytes > max_meta_ ||
      prefix.payload_bytes > kMaxPayloadBytes) {
    Fail(LaneLoss::kBroken,
         Error(Code::kCorrupt,
               fmt::format(
                   "{} announced a frame of {} bytes of metadata and {} of payload; at most "
                   "{} and {} are allowed, so the connection was closed",
                   remote_, prefix.meta_bytes, prefix.payload_bytes, max_meta_, kMaxPayloadBytes)));
    return false;
  }
  if (buffered() < sizeof prefix + prefix.meta_bytes) return false;
  auto placed =
      handler_->OnFrame(Buffered().subspan(sizeof prefix, prefix.meta_bytes), prefix.payload_bytes);
  if (!fd_) return false;
  if (!placed) {
    Fail(LaneLoss::kBroken, placed.error());
    return false;
  }
  if (placed->action == Placement::Action::kPause) {
    receiving_ = Receiving::kPaused;
    return false;
  }
  if (placed->registered.memory != nullptr) {
    Fail(LaneLoss::kBroken, RegisteredMemoryUnsupported("tcp"));
    return false;
  }
  rx_begin_ += sizeof prefix + prefix.meta_bytes;
  payload_left_ = prefix.payload_bytes;
  after_large_ = payload_left_ >= kLargePayload;
  if (payload_left_ > 0) {
    place_ = IoCursor(placed->memory);
    receiving_ =
        placed->action == Placement::Action::kPlace ? Receiving::kPayload : Receiving::kDiscard;
    const bool revocable = placed->revocable || payload_left_ >= kSpliceFrom;
    if (revocable && buffered() > 0 && !looked_for_reset_) {
      if (FailIfReset()) return false;
      looked_for_reset_ = true;
    }
  }
  return true;
}

void TcpLane::Resume() {
  if (receiving_ != Receiving::kPaused) return;
  receiving_ = Receiving::kFrame;
  RequestNextTurn();
}

void TcpLane::DiscardRest() {
  if (receiving_ == Receiving::kPayload) receiving_ = Receiving::kDiscard;
}

// ---- sending ------------------------------------------------------------------------------------

void TcpLane::Send(OutFrame* frame) {
  FERRY_CHECK(!frame->meta.empty() && frame->meta.size() <= kMaxMetaBytes, frame->meta.size());
  if (!fd_ || refused_) return;
  if (frame->registered.memory != nullptr) {
    // The lane ends in the next turn: Send() never calls back from inside.
    refused_ = true;
    return RequestNextTurn();
  }
  FramePrefix prefix;
  prefix.meta_bytes = static_cast<std::uint32_t>(frame->meta.size());
  prefix.payload_bytes = frame->payload_bytes;
  if (queue_.size() == sent_frames_) {
    body_ = IoCursor(frame->payload);
    body_left_ = frame->payload_bytes;
    head_sent_ = 0;
  }
  queue_.push_back({frame, prefix});
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
  if (refused_) return Fail(LaneLoss::kBroken, RegisteredMemoryUnsupported("tcp"));
  if (queue_.size() > sent_frames_) RequestFlush();
  ReceiveOnLoop();
}

void TcpLane::FlushOnLoop() {
  std::size_t budget = kTurnBytes;
  while (fd_ && queue_.size() > sent_frames_) {
    const ssize_t sent = SendSome();
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
  while (fd_ && sent_frames_ > 0) {
    OutFrame* const frame = queue_.front().frame;
    queue_.pop_front();
    --sent_frames_;
    handler_->OnSent(frame);
  }
}

// Returns the bytes accepted by the socket, or -1 with errno.
ssize_t TcpLane::SendSome() {
  if (!splice_pipe_ || splice_pipe_->held() == 0) {
    const Queued& front = queue_[sent_frames_];
    const bool at_body = head_sent_ == sizeof(FramePrefix) + front.frame->meta.size();
    if (!at_body || !Gives(front, body_left_)) return SendCopied();
    // Created here and not earlier: a pipe is two descriptors, which only a peer that gets payloads
    // is worth.
    if (!splice_pipe_ && !(splice_pipe_ = SplicePipe::Create())) may_splice_ = false;
    if (!splice_pipe_) return SendCopied();
    std::array<iovec, kMaxPieces> pieces;
    std::size_t used = 0;
    (void)body_.Collect(pieces, &used, splice_pipe_->capacity());
    const ssize_t taken = splice_pipe_->Fill(std::span(pieces.data(), used));
    // Memory without pages, such as device mappings, is copied instead.
    if (taken <= 0) return SendCopied();
    given_ = true;
    front.frame->given = true;
    body_.Advance(static_cast<std::size_t>(taken));
  }
  const ssize_t passed = splice_pipe_->Drain(fd_.get());
  if (passed > 0) {
    body_left_ -= static_cast<std::size_t>(passed);
    if (body_left_ == 0) AdvanceSent(0);
  }
  return passed;
}

ssize_t TcpLane::SendCopied() {
  std::array<iovec, kMaxPieces> pieces;
  std::size_t used = 0;
  CollectFrames(pieces, &used);
  const ssize_t sent = stream_->Writev(std::span(pieces.data(), used));
  if (sent > 0) AdvanceSent(static_cast<std::size_t>(sent));
  return sent;
}

// Collects the frames to send next, from the current position in the first one.
void TcpLane::CollectFrames(std::span<iovec> out, std::size_t* used) const {
  std::size_t total = 0;
  for (std::size_t i = sent_frames_; i < queue_.size(); ++i) {
    const Queued& queued = queue_[i];
    const bool first = i == sent_frames_;
    if (*used + 3 > out.size() || total >= kSendBytes) return;
    total += CollectHead(queued, first ? head_sent_ : 0, out, used);
    const std::uint64_t payload = first ? body_left_ : queued.prefix.payload_bytes;
    if (payload == 0) continue;
    if (total > 0 && Gives(queued, payload)) return;
    const IoCursor body = first ? body_ : IoCursor(queued.frame->payload);
    const std::size_t taken = body.Collect(out, used, kSendBytes > total ? kSendBytes - total : 0);
    total += taken;
    if (taken < payload) return;
  }
}

// The unsent rest of a frame's prefix and metadata; `skip` bytes have been sent.
std::size_t TcpLane::CollectHead(const Queued& queued, std::size_t skip, std::span<iovec> out,
                                 std::size_t* used) {
  const std::size_t meta_bytes = queued.frame->meta.size();
  if (skip < sizeof(FramePrefix)) {
    auto* prefix = reinterpret_cast<std::byte*>(const_cast<FramePrefix*>(&queued.prefix));
    out[(*used)++] = {prefix + skip, sizeof(FramePrefix) - skip};
  }
  const std::size_t meta_skip = skip > sizeof(FramePrefix) ? skip - sizeof(FramePrefix) : 0;
  if (meta_skip < meta_bytes) {
    out[(*used)++] = {queued.frame->meta.data() + meta_skip, meta_bytes - meta_skip};
  }
  return sizeof(FramePrefix) + meta_bytes - skip;
}

bool TcpLane::Gives(const Queued& queued, std::uint64_t payload_left) const {
  const OutFrame& frame = *queued.frame;
  return may_splice_ && frame.may_splice && payload_left >= kSpliceFrom &&
         frame.payload_bytes / frame.payload.size() >= kSplicePiece;
}

void TcpLane::AdvanceSent(std::size_t bytes) {
  while (sent_frames_ < queue_.size()) {
    const Queued& front = queue_[sent_frames_];
    const std::size_t head = sizeof(FramePrefix) + front.frame->meta.size();
    const std::size_t head_part = std::min(bytes, head - head_sent_);
    head_sent_ += head_part;
    bytes -= head_part;
    const std::size_t body_part = std::min<std::uint64_t>(bytes, body_left_);
    body_.Advance(body_part);
    body_left_ -= body_part;
    bytes -= body_part;
    if (head_sent_ < head || body_left_ > 0) return;
    ++sent_frames_;
    head_sent_ = 0;
    if (sent_frames_ == queue_.size()) return;
    body_ = IoCursor(queue_[sent_frames_].frame->payload);
    body_left_ = queue_[sent_frames_].prefix.payload_bytes;
  }
}

}  // namespace ferry::net::tcp
