// Blocking TCP sockets for tests.
#include "ferry/net/testing/raw_peer.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "ferry/core/check.h"

namespace ferry::net {
namespace {

UniqueFd OpenTcpWithLongTimeouts(int family) {
  UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  FERRY_CHECK(fd, errno);
  // Also limits accept() and connect().
  const timeval minute{60, 0};
  (void)::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &minute, sizeof minute);
  (void)::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &minute, sizeof minute);
  return fd;
}

}  // namespace

RawPeer::RawPeer(UniqueFd fd) : fd_(std::move(fd)) {
  const int on = 1;
  (void)::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

RawPeer RawPeer::ConnectTo(const Address& address) {
  const auto raw = ToRaw(address);
  FERRY_CHECK(raw, address.ToString());
  UniqueFd fd = OpenTcpWithLongTimeouts(raw->family());
  FERRY_CHECK(::connect(fd.get(), raw->get(), raw->length) == 0, address.ToString(), errno);
  return RawPeer(std::move(fd));
}

bool RawPeer::Write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
  return true;
}

std::vector<std::byte> RawPeer::Read(std::size_t bytes) {
  std::vector<std::byte> read(bytes);
  std::size_t have = 0;
  while (have < bytes) {
    const ssize_t got = ::recv(fd_.get(), read.data() + have, bytes - have, 0);
    if (got <= 0) break;
    have += static_cast<std::size_t>(got);
  }
  read.resize(have);
  return read;
}

int RawPeer::ReadToEnd() {
  std::vector<std::byte> read(1 << 16);
  for (;;) {
    const ssize_t got = ::recv(fd_.get(), read.data(), read.size(), 0);
    if (got <= 0) return got == 0 ? 0 : errno;
  }
}

void RawPeer::EndWriting() { (void)::shutdown(fd_.get(), SHUT_WR); }

void RawPeer::Reset() {
  const linger reset{1, 0};
  (void)::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  fd_.reset();
}

RawListener::RawListener(const Address& at) {
  RawAddress raw = *ToRaw(at);
  fd_ = OpenTcpWithLongTimeouts(raw.family());
  auto* const name = reinterpret_cast<sockaddr*>(&raw.storage);
  FERRY_CHECK(::bind(fd_.get(), name, raw.length) == 0, errno);
  FERRY_CHECK(::listen(fd_.get(), 128) == 0, errno);
  FERRY_CHECK(::getsockname(fd_.get(), name, &raw.length) == 0, errno);
  address_ = FromRaw(raw);
}

UniqueFd RawListener::Accept() {
  UniqueFd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  FERRY_CHECK(fd, errno);
  const timeval minute{60, 0};
  (void)::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &minute, sizeof minute);
  (void)::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &minute, sizeof minute);
  return fd;
}

}  // namespace ferry::net
