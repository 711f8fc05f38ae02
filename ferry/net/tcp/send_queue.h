// The frames that a TCP lane has to send.
#pragma once
#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>

#include "ferry/net/io_cursor.h"
#include "ferry/net/provider.h"
#include "ferry/net/tcp/byte_stream.h"
#include "ferry/net/tcp/frame_prefix.h"
#include "ferry/net/tcp/splice_pipe.h"

namespace ferry::net::tcp {

// Zero-copy sends are used when at least this much is left to send; docs/results.md has the gain.
inline constexpr std::size_t kSpliceFrom = 64 * 1024;

// Frames in the order of Push(), and the position in the first of them that is not sent. One thread
// at a time.
class SendQueue {
 public:
  // Allows zero-copy sends, for frames that allow them.
  void AllowSplices() noexcept { may_splice_ = true; }

  void Push(OutFrame* frame);
  // Whether there is no frame that TakeSent() has not returned.
  bool empty() const noexcept { return queue_.empty(); }
  bool has_unsent() const noexcept { return queue_.size() > sent_frames_; }
  // True once pages were spliced: the kernel may still read the sender's memory, or hold bytes that
  // the peer must not receive.
  bool has_spliced() const noexcept { return spliced_; }

  // Bytes that the stream or the socket has accepted.
  std::uint64_t accepted() const noexcept { return accepted_; }

  // Passes bytes of the unsent frames, of which there must be one, to the stream, or pages to its
  // `socket`. Returns the bytes that were accepted, or -1 with errno.
  ssize_t SendSome(ByteStream* stream, int socket);
  // The next frame that was sent whole, or null.
  OutFrame* TakeSent();
  // Drops all frames, and bytes that have not reached the socket.
  void Clear();

 private:
  struct Queued {
    OutFrame* frame;
    FramePrefix prefix;
  };

  void StartFront();
  ssize_t SendCopied(ByteStream* stream);
  void CollectFrames(std::span<iovec> out, std::size_t* used) const;
  static std::size_t CollectHead(const Queued& queued, std::size_t skip, std::span<iovec> out,
                                 std::size_t* used);
  bool Splices(const Queued& queued, std::uint64_t payload_left) const;
  void AdvanceSent(std::size_t bytes);

  std::deque<Queued> queue_;
  std::size_t sent_frames_ = 0;  // sent, at the front of queue_, not yet taken
  std::size_t head_sent_ = 0;    // sent bytes of the first unsent frame's prefix and metadata
  IoCursor body_;                // that frame's payload
  std::uint64_t body_left_ = 0;
  std::uint64_t accepted_ = 0;
  bool may_splice_ = false;
  std::optional<SplicePipe> splice_pipe_;  // created at the first zero-copy send
  bool spliced_ = false;                   // ever
  bool front_spliced_ = false;             // the first unsent frame
};

}  // namespace ferry::net::tcp
