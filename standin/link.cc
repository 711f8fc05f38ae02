// Implements making the sockets of a connection.

#include "standin/link.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "standin/report.h"

namespace ferry::standin {
namespace {

constexpr std::uint32_t kHelloMagic = 0x53744e69;

// The first bytes of each socket.
struct Hello {
  std::uint32_t magic = kHelloMagic;
  std::uint32_t index = 0;  // the control socket's is the count of data sockets
  std::uint64_t id = 0;
};
static_assert(sizeof(Hello) == 16);

template <class Record>
const std::byte* BytesOf(const Record& record) {
  return static_cast<const std::byte*>(static_cast<const void*>(&record));
}
template <class Record>
std::byte* BytesOf(Record& record) {
  return static_cast<std::byte*>(static_cast<void*>(&record));
}

sockaddr_in Loopback(std::uint32_t port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return address;
}

// The address in the form of bind(), connect() and getsockname().
sockaddr* Generic(sockaddr_in& address) {
  return static_cast<sockaddr*>(static_cast<void*>(&address));
}

void Complain(const char* what) {
  Log(abi::kLogWarn, "standin: %s: %s", what, std::strerror(errno));
}

Socket ConnectSocket(const Rendezvous& rendezvous, std::uint32_t index) {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = Loopback(rendezvous.port);
  if (!socket || ::connect(socket.get(), Generic(address), sizeof(address)) != 0) {
    Complain("connect");
    return {};
  }
  // Control records have 16 bytes. Nagle's algorithm would hold one back until the last is
  // acknowledged.
  const int on = 1;
  (void)::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  const Hello hello = {.index = index, .id = rendezvous.id};
  if (!SendAll(socket.get(), BytesOf(hello), sizeof(hello))) return {};
  return socket;
}

// Invalid once the listener is shut down, or out of descriptors.
Socket AcceptAnyone(int listener) {
  for (;;) {
    Socket socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (socket || (errno != EINTR && errno != ECONNABORTED)) return socket;
  }
}

// Whether the peer is one of ours; then which of its sockets this is.
bool IsExpected(const Socket& socket, const Rendezvous& rendezvous, std::uint32_t* index) {
  // One thread takes all sockets, so one that connects and says nothing must not block it for good.
  // The limit ends with the hello: data sockets may be idle for any time.
  const timeval timeout = {.tv_sec = 5, .tv_usec = 0};
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  Hello hello;
  if (!ReceiveAll(socket.get(), BytesOf(hello), sizeof(hello))) return false;
  if (hello.magic != kHelloMagic || hello.id != rendezvous.id) return false;
  const timeval forever = {};
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &forever, sizeof(forever));
  *index = hello.index;
  return hello.index <= rendezvous.sockets;
}

}  // namespace

void SocketTraits::Destroy(Handle fd) noexcept { (void)::close(fd); }

bool SendAll(int fd, const std::byte* from, std::size_t bytes) {
  while (bytes > 0) {
    // Without MSG_NOSIGNAL, a peer that has gone would end the host's process by SIGPIPE.
    const ssize_t sent = ::send(fd, from, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    from += sent;
    bytes -= static_cast<std::size_t>(sent);
  }
  return true;
}

bool ReceiveAll(int fd, std::byte* to, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t received = ::recv(fd, to, bytes, 0);
    if (received < 0 && errno == EINTR) continue;
    if (received <= 0) return false;
    to += received;
    bytes -= static_cast<std::size_t>(received);
  }
  return true;
}

Socket ListenOnLoopback(std::uint32_t* port) {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = Loopback(0);
  socklen_t bytes = sizeof(address);
  if (!socket || ::bind(socket.get(), Generic(address), bytes) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0 ||
      ::getsockname(socket.get(), Generic(address), &bytes) != 0) {
    Complain("listen");
    return {};
  }
  *port = ntohs(address.sin_port);
  return socket;
}

std::optional<Link> ConnectLink(const Rendezvous& rendezvous) {
  Link link;
  link.control = ConnectSocket(rendezvous, rendezvous.sockets);
  if (!link.control) return std::nullopt;
  for (std::uint32_t i = 0; i < rendezvous.sockets; ++i) {
    link.data.push_back(ConnectSocket(rendezvous, i));
    if (!link.data.back()) return std::nullopt;
  }
  // An established socket may still be in the listener's queue. The byte says that all of them have
  // been accepted.
  std::byte ready = {};
  if (!ReceiveAll(link.control.get(), &ready, 1)) {
    Log(abi::kLogWarn, "standin: the listener has gone before it accepted");
    return std::nullopt;
  }
  return link;
}

std::optional<Link> AcceptLink(int listener, const Rendezvous& rendezvous) {
  Link link;
  link.data.resize(rendezvous.sockets);
  for (std::uint32_t missing = rendezvous.sockets + 1; missing > 0;) {
    std::uint32_t index = 0;
    Socket socket = AcceptAnyone(listener);
    if (!socket) return std::nullopt;
    if (!IsExpected(socket, rendezvous, &index)) continue;
    Socket& place = index == rendezvous.sockets ? link.control : link.data[index];
    if (place) continue;
    place = std::move(socket);
    --missing;
  }
  const std::byte ready = {};
  if (!SendAll(link.control.get(), &ready, 1)) return std::nullopt;
  return link;
}

// ---- Attempt ------------------------------------------------------------------------------------

std::shared_ptr<Attempt> Attempt::Start(std::function<std::optional<Link>()> make) {
  auto attempt = Never();
  std::thread([attempt, make = std::move(make)] { attempt->Finish(make()); }).detach();
  return attempt;
}

std::shared_ptr<Attempt> Attempt::Never() { return std::make_shared<Attempt>(); }

Attempt::State Attempt::state() {
  const std::lock_guard lock(mutex_);
  return state_;
}

Link Attempt::TakeLink() {
  const std::lock_guard lock(mutex_);
  return std::move(link_);
}

void Attempt::Finish(std::optional<Link> link) {
  const std::lock_guard lock(mutex_);
  state_ = link ? State::kReady : State::kFailed;
  if (link) link_ = std::move(*link);
}

}  // namespace ferry::standin
