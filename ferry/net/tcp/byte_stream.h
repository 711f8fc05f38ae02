// The byte stream of a socket, plain or TLS.
#pragma once
#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "ferry/core/result.h"
#include "ferry/net/provider.h"

namespace ferry::net::tcp {

// Reads and writes the bytes of a connected, non-blocking socket, plain or through TLS. Owned by
// the user of the socket, which must outlive it; one thread at a time. Results are those of
// readv(2) and sendmsg(2): bytes, 0 at an orderly end, or -1 with errno.
class ByteStream {
 public:
  // Why the stream ended, where errno does not say it.
  struct Failure {
    Code code;
    std::string text;  // what is wrong, and how to fix it
  };

  virtual ~ByteStream() = default;

  // Reads the socket at most once, or until there is something to return. `bytes` is the total size
  // of the pieces.
  virtual ssize_t Readv(std::span<const iovec> pieces, std::size_t bytes) = 0;
  // Reads up to `bytes` bytes and drops them.
  virtual ssize_t Discard(std::size_t bytes) = 0;
  // After EAGAIN the next call must begin with the same bytes.
  virtual ssize_t Writev(std::span<const iovec> pieces) = 0;
  // Announces the end of the stream, where the protocol has such a message; the socket stays open.
  virtual void SayEnd() {}

  // Whether the last read emptied the socket, so that epoll will report further input (epoll(7)).
  bool drained() const noexcept { return drained_; }
  // Work of reading since the last call, in bytes of payload that cost as much.
  virtual std::size_t TakeWork() noexcept { return 0; }
  // Whether input is buffered here, which epoll will not report.
  virtual bool HoldsInput() const { return false; }
  // Whether the socket carries the payload bytes themselves, so that SO_RCVLOWAT and vmsplice(2)
  // make sense.
  virtual bool is_plain() const noexcept = 0;
  // Set after EPROTO, or after FindReason().
  virtual const Failure* failure() const noexcept { return nullptr; }
  // Call after the kernel has reported a lost connection: looks in the unread input for the peer's
  // reason.
  virtual void FindReason() {}
  // Fills in `authenticated`, `security` and `channel_binding`.
  virtual void Describe(LaneInfo* info) const = 0;

 protected:
  bool drained_ = false;
};

// Without TLS.
std::unique_ptr<ByteStream> MakePlainStream(int fd);

}  // namespace ferry::net::tcp
