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

// The bytes that cross a connected, non-blocking socket: as they are, or inside TLS. Belongs to
// whoever drives the socket, which must outlive it. Results are those of readv(2) and sendmsg(2):
// bytes, 0 at an orderly end, or -1 with errno.
class ByteStream {
 public:
  // Why the stream ended, where it is not for the system to say.
  struct Failure {
    Code code;
    std::string text;  // what is wrong, and the next step
  };

  virtual ~ByteStream() = default;

  // Reads the socket at most once, or until there is something to return. `bytes`: of the pieces.
  virtual ssize_t Readv(std::span<const iovec> pieces, std::size_t bytes) = 0;
  // Reads into nowhere.
  virtual ssize_t Discard(std::size_t bytes) = 0;
  // After EAGAIN the pieces must begin with the bytes that they began with.
  virtual ssize_t Writev(std::span<const iovec> pieces) = 0;
  // Says that nothing more will come, where the protocol can say that; the socket stays open.
  virtual void SayEnd() {}

  // Whether the last read has emptied the socket, so that an event will tell of more (epoll(7)).
  bool drained() const noexcept { return drained_; }
  // Whether there is input that no event will tell of.
  virtual bool HoldsInput() const { return false; }
  // Whether SO_RCVLOWAT and vmsplice(2) make sense: what crosses the socket is what is read.
  virtual bool is_plain() const noexcept = 0;
  // After EPROTO, or after FindReason().
  virtual const Failure* failure() const noexcept { return nullptr; }
  // The system says that the connection is lost: looks, in what came before, for the peer's reason.
  virtual void FindReason() {}
  // Fills in `authenticated`, `security` and `channel_binding`.
  virtual void Describe(LaneInfo* info) const = 0;

 protected:
  bool drained_ = false;
};

// Without TLS.
std::unique_ptr<ByteStream> MakePlainStream(int fd);

}  // namespace ferry::net::tcp
