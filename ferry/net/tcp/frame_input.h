// The received bytes of a TCP lane, and the frame that is arriving.
#pragma once
#include <sys/types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "ferry/core/result.h"
#include "ferry/net/io_cursor.h"
#include "ferry/net/provider.h"
#include "ferry/net/tcp/byte_stream.h"

namespace ferry::net::tcp {

// Bytes of later frames that a read may take along with the end of a payload.
inline constexpr std::size_t kReadAhead = 64 * 1024;

// Cuts a stream into frames. A buffer holds the head of a frame, small payloads and bytes that were
// read ahead; the rest of a payload is read directly into its destination. One thread at a time.
class FrameInput {
 public:
  enum class State {
    kFrame,    // between frames, or in the head of one
    kPayload,  // of the current frame; it goes to the placement's memory
    kDiscard,  // of the current frame; it is dropped
    kPaused,   // the handler does not want the next frame yet
  };
  struct Head {
    std::span<const std::byte> meta;  // valid until Begin() or Read()
    std::uint64_t payload_bytes = 0;
  };

  State state() const noexcept { return state_; }
  // Bytes that were read and belong to no delivered head or payload.
  std::size_t buffered() const noexcept { return rx_end_ - rx_begin_; }
  std::size_t buffer_bytes() const noexcept { return rx_bytes_; }
  // Bytes of the current payload that have not reached their destination.
  std::uint64_t payload_left() const noexcept { return payload_left_; }
  // See Lane::SetMaxMeta.
  void SetMaxMeta(std::size_t bytes) noexcept { max_meta_ = std::min(bytes, kMaxMetaBytes); }

  // Reads once, into the payload's destination, past a payload that is dropped, or into the buffer.
  // Returns what the stream returned. Not while paused.
  ssize_t Read(ByteStream* stream);

  // In kFrame: the next frame, once its whole head is buffered. Errors: kCorrupt, with the name
  // `remote`.
  Result<std::optional<Head>> NextHead(const std::string& remote) const;
  // Takes the head that NextHead() has returned out of the buffer. Its payload, if any, comes next.
  void Begin(const Head& head, const Placement& placement);
  // In kPayload and kDiscard: moves buffered bytes to their destination. Returns whether the
  // payload is complete; the state is kFrame then.
  bool TakeBuffered();

  void Pause() noexcept { state_ = State::kPaused; }
  // Returns whether it was paused.
  bool Resume() noexcept;
  // See Lane::DiscardRest.
  void DiscardRest() noexcept;

 private:
  ssize_t ReadIntoPayload(ByteStream* stream);
  ssize_t ReadIntoBuffer(ByteStream* stream);
  void GrowBuffer(std::size_t bytes);
  std::span<const std::byte> Buffered() const noexcept {
    return {rx_.get() + rx_begin_, buffered()};
  }

  State state_ = State::kFrame;
  std::size_t max_meta_ = kMaxMetaBytes;
  std::unique_ptr<std::byte[]> rx_;
  std::size_t rx_bytes_ = 0;  // capacity of rx_
  std::size_t rx_begin_ = 0;
  std::size_t rx_end_ = 0;
  bool rx_filled_ = false;    // the last read filled rx_
  bool after_large_ = false;  // the last frame's payload was large
  IoCursor place_;
  std::uint64_t payload_left_ = 0;
};

}  // namespace ferry::net::tcp
