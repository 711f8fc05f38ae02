// Reading the bytes of a TCP lane and finding the frames in them.
#include "ferry/net/tcp/frame_input.h"

#include <fmt/core.h>

#include <array>
#include <cstring>
#include <utility>

#include "ferry/net/tcp/frame_prefix.h"
#include "ferry/net/tcp/tls/failure.h"

namespace ferry::net::tcp {
namespace {

constexpr std::size_t kRxBytes = sizeof(FramePrefix) + kMaxMetaBytes + kReadAhead;
// Initial size of the receive buffer, until a read fills it, and its only size while the peer is
// pending.
constexpr std::size_t kSmallRxBytes = kPendingPeerLaneBytes;
static_assert(kSmallRxBytes >= 2 * (sizeof(FramePrefix) + kMaxPendingPeerMeta));
// After a large payload, only the next frame's head is worth reading ahead: another large frame is
// likely to follow, and payload bytes that land in rx_ are copied once more.
constexpr std::size_t kReadAheadAfterLarge = 2 * 1024;
constexpr std::size_t kLargePayload = 64 * 1024;
constexpr std::size_t kMaxDiscard = 4 << 20;  // per read
constexpr std::size_t kMaxPieces = 256;

std::string HexOf(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte b : bytes) text += fmt::format("{:02x} ", std::to_integer<int>(b));
  if (!text.empty()) text.pop_back();
  return text;
}

}  // namespace

// ---- reading ------------------------------------------------------------------------------------

ssize_t FrameInput::Read(ByteStream* stream) {
  if (state_ == State::kPayload) return ReadIntoPayload(stream);
  if (state_ != State::kDiscard) return ReadIntoBuffer(stream);
  const ssize_t got = stream->Discard(std::min<std::uint64_t>(payload_left_, kMaxDiscard));
  if (got > 0) payload_left_ -= static_cast<std::size_t>(got);
  return got;
}

ssize_t FrameInput::ReadIntoPayload(ByteStream* stream) {
  std::array<iovec, kMaxPieces + 1> pieces;
  std::size_t used = 0;
  const std::size_t direct =
      place_.Collect(std::span(pieces.data(), kMaxPieces), &used, payload_left_);
  rx_begin_ = rx_end_ = 0;
  std::size_t asked = direct;
  if (direct == payload_left_) {
    const std::size_t ahead = payload_left_ >= kLargePayload ? kReadAheadAfterLarge : kReadAhead;
    GrowBuffer(ahead);
    pieces[used++] = {rx_.get(), ahead};
    asked += ahead;
  }
  const ssize_t got = stream->Readv(std::span(pieces.data(), used), asked);
  if (got > 0) {
    const auto placed = std::min(static_cast<std::size_t>(got), direct);
    place_.Advance(placed);
    payload_left_ -= placed;
    rx_end_ = static_cast<std::size_t>(got) - placed;
  }
  return got;
}

ssize_t FrameInput::ReadIntoBuffer(ByteStream* stream) {
  if (rx_begin_ > 0) {
    std::memmove(rx_.get(), rx_.get() + rx_begin_, buffered());
    rx_end_ -= rx_begin_;
    rx_begin_ = 0;
  }
  GrowBuffer(rx_filled_ && max_meta_ == kMaxMetaBytes ? kRxBytes : kSmallRxBytes);
  const bool head_only = after_large_ && rx_end_ == 0;
  const std::size_t asked = head_only ? kReadAheadAfterLarge : rx_bytes_ - rx_end_;
  const iovec free{rx_.get() + rx_end_, asked};
  const ssize_t got = stream->Readv({&free, 1}, asked);
  if (got > 0) rx_end_ += static_cast<std::size_t>(got);
  rx_filled_ = rx_end_ == rx_bytes_;
  return got;
}

void FrameInput::GrowBuffer(std::size_t bytes) {
  if (bytes <= rx_bytes_) return;
  rx_bytes_ = bytes <= kSmallRxBytes ? kSmallRxBytes : kRxBytes;
  std::unique_ptr<std::byte[]> larger(new std::byte[rx_bytes_]);
  const auto kept = Buffered();
  std::copy(kept.begin(), kept.end(), larger.get());
  rx_end_ = kept.size();
  rx_begin_ = 0;
  rx_ = std::move(larger);
}

// ---- frames -------------------------------------------------------------------------------------

Result<std::optional<FrameInput::Head>> FrameInput::NextHead(const std::string& remote) const {
  if (LooksLikeTls(Buffered())) {
    return Error(Code::kCorrupt,
                 fmt::format("{} speaks TLS here, where none is expected; set FERRY_TLS to the "
                             "same, off, psk or cert, on both sides",
                             remote));
  }
  if (buffered() < sizeof(FramePrefix)) return std::optional<Head>();
  FramePrefix prefix;
  std::memcpy(&prefix, Buffered().data(), sizeof prefix);
  if (prefix.magic != FramePrefix::kMagic) {
    return Error(Code::kCorrupt,
                 fmt::format("{} sent bytes that are no ferry frame (they begin {}); check that "
                             "the address is that of a Tensorferry endpoint",
                             remote, HexOf(Buffered().first(8))));
  }
  if (prefix.meta_bytes == 0 || prefix.meta_bytes > max_meta_ ||
      prefix.payload_bytes > kMaxPayloadBytes) {
    return Error(
        Code::kCorrupt,
        fmt::format("{} announced a frame of {} bytes of metadata and {} of payload; at most "
                    "{} and {} are allowed, so the connection was closed",
                    remote, prefix.meta_bytes, prefix.payload_bytes, max_meta_, kMaxPayloadBytes));
  }
  if (buffered() < sizeof prefix + prefix.meta_bytes) return std::optional<Head>();
  return std::optional(
      Head{Buffered().subspan(sizeof prefix, prefix.meta_bytes), prefix.payload_bytes});
}

void FrameInput::Begin(const Head& head, const Placement& placement) {
  rx_begin_ += sizeof(FramePrefix) + head.meta.size();
  payload_left_ = head.payload_bytes;
  after_large_ = payload_left_ >= kLargePayload;
  if (payload_left_ == 0) return;
  place_ = IoCursor(placement.memory);
  state_ = placement.action == Placement::Action::kPlace ? State::kPayload : State::kDiscard;
}

bool FrameInput::TakeBuffered() {
  const std::size_t n = std::min<std::uint64_t>(buffered(), payload_left_);
  if (state_ == State::kPayload) place_.CopyIn(Buffered().first(n));
  rx_begin_ += n;
  payload_left_ -= n;
  if (payload_left_ > 0) return false;
  state_ = State::kFrame;
  return true;
}

bool FrameInput::Resume() noexcept {
  if (state_ != State::kPaused) return false;
  state_ = State::kFrame;
  return true;
}

void FrameInput::DiscardRest() noexcept {
  if (state_ == State::kPayload) state_ = State::kDiscard;
}

}  // namespace ferry::net::tcp
