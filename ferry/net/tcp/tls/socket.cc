// Buffered socket I/O beneath OpenSSL.
#include "ferry/net/tcp/tls/socket.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace ferry::net::tcp {
namespace {

// Read-ahead while the peer is pending.
// A pending peer costs little memory; TlsStream enlarges it when the handshake is done.
constexpr std::size_t kFirstReadAhead = 4 * 1024;

TlsSocket& SocketOf(BIO* bio) { return *static_cast<TlsSocket*>(::BIO_get_data(bio)); }

}  // namespace

TlsSocket::TlsSocket(int fd) : fd_(fd), wanted_(kFirstReadAhead) {}

const BIO_METHOD* TlsSocket::Method() {
  // Lives as long as the process, because OpenSSL's BIOs refer to it.
  static BIO_METHOD* const method = [] {
    BIO_METHOD* const made = ::BIO_meth_new(BIO_TYPE_SOURCE_SINK | ::BIO_get_new_index(), "ferry");
    ::BIO_meth_set_read(made, OnRead);
    ::BIO_meth_set_write(made, OnWrite);
    ::BIO_meth_set_ctrl(made, OnControl);
    return made;
  }();
  return method;
}

BIO* TlsSocket::MakeBio() {
  BIO* const bio = ::BIO_new(Method());
  if (bio == nullptr) return nullptr;
  ::BIO_set_data(bio, this);
  ::BIO_set_init(bio, 1);
  return bio;
}

int TlsSocket::OnRead(BIO* bio, char* to, int bytes) {
  TlsSocket& socket = SocketOf(bio);
  BIO_clear_retry_flags(bio);
  const int got =
      socket.Read(reinterpret_cast<std::byte*>(to), static_cast<std::size_t>(std::max(bytes, 0)));
  if (got < 0 && socket.error_ == 0 && !socket.stopped_) BIO_set_retry_read(bio);
  return got;
}

int TlsSocket::OnWrite(BIO* bio, const char* from, int bytes) {
  TlsSocket& socket = SocketOf(bio);
  BIO_clear_retry_flags(bio);
  // Never blocks and never fails: OpenSSL's records are gathered, and Flush() sends them together.
  // The caller bounds how much is queued (kTlsSendBytes, kFreeMessages).
  socket.Queue(std::as_bytes(std::span(from, static_cast<std::size_t>(bytes))));
  return bytes;
}

long TlsSocket::OnControl(BIO* bio, int command, long /*number*/, void* /*pointer*/) {
  if (command == BIO_CTRL_FLUSH) return 1;  // Flush() follows
  if (command == BIO_CTRL_EOF) return SocketOf(bio).at_end_ ? 1 : 0;
  return 0;
}

// As read(2), except that buffered bytes come first, and that a second read of the socket fails
// with EAGAIN.
int TlsSocket::Read(std::byte* to, std::size_t bytes) {
  if (stopped_) return -1;
  if (in_begin_ < in_end_) {
    const std::size_t n = std::min(bytes, held());
    std::memcpy(to, in_.get() + in_begin_, n);
    in_begin_ += n;
    return static_cast<int>(n);
  }
  if (at_end_) return 0;
  // One read of the socket for each AllowRead(): OpenSSL asks again and again while a record is
  // incomplete, and one peer that sends fast must not keep the loop in this function.
  if (error_ != 0 || !std::exchange(may_read_, false)) return -1;
  if (capacity_ != wanted_) {
    in_.reset(new std::byte[wanted_]);
    capacity_ = wanted_;
  }
  // The rest of the current record goes straight into OpenSSL's buffer.
  const std::array<iovec, 2> pieces = {iovec{to, bytes}, iovec{in_.get(), capacity_}};
  ssize_t got = 0;
  do {
    got = ::readv(fd_, pieces.data(), pieces.size());
  } while (got < 0 && errno == EINTR);
  // A short read has emptied the socket (epoll(7)).
  drained_ = got < static_cast<ssize_t>(bytes + capacity_);
  if (got < 0) {
    if (errno != EAGAIN && errno != EWOULDBLOCK) error_ = errno;
    return -1;
  }
  at_end_ = got == 0;
  const std::size_t mine = std::min(static_cast<std::size_t>(got), bytes);
  in_begin_ = 0;
  in_end_ = static_cast<std::size_t>(got) - mine;
  // The beginning of the stream, for the error that tells what the peer speaks instead of TLS.
  const std::size_t kept = std::min(sizeof first_ - first_bytes_, mine);
  std::memcpy(first_ + first_bytes_, to, kept);
  first_bytes_ += kept;
  return static_cast<int>(mine);
}

bool TlsSocket::Flush() {
  while (out_begin_ < out_.size()) {
    const ssize_t sent =
        ::send(fd_, out_.data() + out_begin_, unsent(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      out_begin_ += static_cast<std::size_t>(sent);
    } else if (errno != EINTR) {
      return false;
    }
  }
  out_.clear();
  out_begin_ = 0;
  return true;
}

}  // namespace ferry::net::tcp
