// Sending queued frames, several in one system call.
#include "ferry/net/tcp/send_queue.h"

#include <algorithm>
#include <array>

#include "ferry/core/check.h"

namespace ferry::net::tcp {
namespace {

// Maximum bytes per system call: 256 KiB to 1 MiB is best on loopback; 64 KiB costs 16 %.
constexpr std::size_t kSendBytes = 1 << 20;
constexpr std::size_t kMaxSendPieces = 256;
// Zero-copy sends are used for pieces of at least this average size.
constexpr std::size_t kSplicePiece = 8 * 1024;

}  // namespace

void SendQueue::Push(OutFrame* frame) {
  FERRY_CHECK(!frame->meta.empty() && frame->meta.size() <= kMaxMetaBytes, frame->meta.size());
  FramePrefix prefix;
  prefix.meta_bytes = static_cast<std::uint32_t>(frame->meta.size());
  prefix.payload_bytes = frame->payload_bytes;
  const bool is_front = !has_unsent();
  queue_.push_back({frame, prefix});
  if (is_front) StartFront();
}

void SendQueue::StartFront() {
  const Queued& front = queue_[sent_frames_];
  body_ = IoCursor(front.frame->payload);
  body_left_ = front.prefix.payload_bytes;
  head_sent_ = 0;
  front_spliced_ = false;
}

OutFrame* SendQueue::TakeSent() {
  if (sent_frames_ == 0) return nullptr;
  OutFrame* const frame = queue_.front().frame;
  queue_.pop_front();
  --sent_frames_;
  return frame;
}

void SendQueue::Clear() {
  queue_.clear();
  sent_frames_ = 0;
  splice_pipe_.reset();
}

ssize_t SendQueue::SendSome(ByteStream* stream, int socket) {
  if (!splice_pipe_ || splice_pipe_->held() == 0) {
    const Queued& front = queue_[sent_frames_];
    const bool at_body = head_sent_ == sizeof(FramePrefix) + front.frame->meta.size();
    if (!at_body || !Splices(front, body_left_)) return SendCopied(stream);
    // Created here and not earlier: a pipe is two descriptors, which only a peer that gets payloads
    // is worth.
    if (!splice_pipe_ && !(splice_pipe_ = SplicePipe::Create())) may_splice_ = false;
    if (!splice_pipe_) return SendCopied(stream);
    std::array<iovec, kMaxSendPieces> pieces;
    std::size_t used = 0;
    (void)body_.Collect(pieces, &used, splice_pipe_->capacity());
    const ssize_t taken = splice_pipe_->Fill(std::span(pieces.data(), used));
    // Memory without pages, such as device mappings, is copied instead.
    if (taken <= 0) return SendCopied(stream);
    spliced_ = front_spliced_ = true;
    body_.Advance(static_cast<std::size_t>(taken));
  }
  const ssize_t passed = splice_pipe_->Drain(socket);
  if (passed > 0) {
    accepted_ += static_cast<std::size_t>(passed);
    body_left_ -= static_cast<std::size_t>(passed);
    if (body_left_ == 0) AdvanceSent(0);
  }
  return passed;
}

ssize_t SendQueue::SendCopied(ByteStream* stream) {
  std::array<iovec, kMaxSendPieces> pieces;
  std::size_t used = 0;
  CollectFrames(pieces, &used);
  const ssize_t sent = stream->Writev(std::span(pieces.data(), used));
  if (sent > 0) AdvanceSent(static_cast<std::size_t>(sent));
  return sent;
}

// Collects the frames to send next, from the current position in the first one.
void SendQueue::CollectFrames(std::span<iovec> out, std::size_t* used) const {
  std::size_t total = 0;
  for (std::size_t i = sent_frames_; i < queue_.size(); ++i) {
    const Queued& queued = queue_[i];
    const bool first = i == sent_frames_;
    if (*used + 3 > out.size() || total >= kSendBytes) return;
    total += CollectHead(queued, first ? head_sent_ : 0, out, used);
    const std::uint64_t payload = first ? body_left_ : queued.prefix.payload_bytes;
    if (payload == 0) continue;
    if (total > 0 && Splices(queued, payload)) return;
    const IoCursor body = first ? body_ : IoCursor(queued.frame->payload);
    const std::size_t taken = body.Collect(out, used, kSendBytes > total ? kSendBytes - total : 0);
    total += taken;
    if (taken < payload) return;
  }
}

// The unsent rest of a frame's prefix and metadata; `skip` bytes have been sent.
std::size_t SendQueue::CollectHead(const Queued& queued, std::size_t skip, std::span<iovec> out,
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

bool SendQueue::Splices(const Queued& queued, std::uint64_t payload_left) const {
  const OutFrame& frame = *queued.frame;
  return may_splice_ && frame.may_splice && payload_left >= kSpliceFrom &&
         frame.payload_bytes / frame.payload.size() >= kSplicePiece;
}

void SendQueue::AdvanceSent(std::size_t bytes) {
  while (has_unsent()) {
    const Queued& front = queue_[sent_frames_];
    const std::size_t head = sizeof(FramePrefix) + front.frame->meta.size();
    const std::size_t head_part = std::min(bytes, head - head_sent_);
    head_sent_ += head_part;
    bytes -= head_part;
    const std::size_t body_part = std::min<std::uint64_t>(bytes, body_left_);
    body_.Advance(body_part);
    body_left_ -= body_part;
    bytes -= body_part;
    accepted_ += head_part + body_part;
    if (head_sent_ < head || body_left_ > 0) return;
    if (front_spliced_) front.frame->spliced_to = accepted_;
    ++sent_frames_;
    if (has_unsent()) StartFront();
  }
}

}  // namespace ferry::net::tcp
