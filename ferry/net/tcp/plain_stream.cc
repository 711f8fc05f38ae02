// The byte stream without TLS.
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ferry/core/unordered_access.h"
#include "ferry/net/tcp/byte_stream.h"

namespace ferry::net::tcp {
namespace {

class PlainStream final : public ByteStream {
 public:
  explicit PlainStream(int fd) : fd_(fd) {}

  ssize_t Readv(std::span<const iovec> pieces, std::size_t bytes) override {
    const UnorderedAccess placing;
    return Got(::readv(fd_, pieces.data(), static_cast<int>(pieces.size())), bytes);
  }

  ssize_t Discard(std::size_t bytes) override {
    // For TCP, MSG_TRUNC removes bytes from the queue without copying them (tcp(7)). A raw system
    // call instead of recv(), because the sanitizers' wrapper assumes that the null pointer was
    // written to.
    return Got(::syscall(SYS_recvfrom, fd_, nullptr, bytes, MSG_TRUNC, nullptr, nullptr), bytes);
  }

  ssize_t Writev(std::span<const iovec> pieces) override {
    // sendmsg() instead of writev(): only it takes MSG_NOSIGNAL. It does not write to the pieces.
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(pieces.data());
    message.msg_iovlen = pieces.size();
    const UnorderedAccess fetching;
    return ::sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  bool is_plain() const noexcept override { return true; }
  void Describe(LaneInfo* info) const override { info->security = "none"; }

 private:
  // A short read has emptied the socket (epoll(7)).
  ssize_t Got(ssize_t got, std::size_t asked) {
    drained_ = got < static_cast<ssize_t>(asked);
    return got;
  }

  const int fd_;
};

}  // namespace

std::unique_ptr<ByteStream> MakePlainStream(int fd) { return std::make_unique<PlainStream>(fd); }

}  // namespace ferry::net::tcp
