// Implements the plain-socket copy that transfers are compared with.

#include "tools/perf/floor.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "ferry/core/loop/thread.h"
#include "ferry/net/tcp/socket_options.h"
#include "tools/support/process.h"

namespace ferry::tools {
namespace {

constexpr std::size_t kPingBytes = 8;
constexpr std::uint64_t kAlignment = 64;
constexpr auto kHelloTimeout = std::chrono::seconds(2);
// While it spins, a round trip looks at the clock and for Ctrl-C only this often.
constexpr std::size_t kTriesPerGlance = 4096;

// Sent first on each socket.
struct Hello {
  std::array<std::byte, 16> token;
  std::uint32_t index;
};
static_assert(sizeof(Hello) == 20);

// How long a blocking call on a socket of Prepare() waits for the peer.
std::chrono::seconds TimeoutOf(int fd) {
  timeval limit{};
  socklen_t length = sizeof limit;
  (void)::getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, &length);
  return std::chrono::seconds(limit.tv_sec);
}

std::string PeerOf(int fd) {
  net::RawAddress raw;
  raw.length = sizeof raw.storage;
  auto* const name = reinterpret_cast<sockaddr*>(&raw.storage);  // as in RawAddress::get()
  return ::getpeername(fd, name, &raw.length) == 0 ? net::FromRaw(raw).ToString() : "the peer";
}

// Without the peer's name, which a socket that has failed does not know any more: Named() adds it.
Error FloorError(int fd, const char* call, ssize_t result) {
  const int error_number = errno;
  if (result == 0) return Error(Code::kPeerLost, "closed a socket of the plain-socket floor");
  // By the socket's timeout, or the kernel's for what the peer does not acknowledge.
  if (error_number == EAGAIN || error_number == EWOULDBLOCK || error_number == ETIMEDOUT) {
    return Error(Code::kPeerLost,
                 fmt::format("has been silent for {} s (FERRY_PEER_TIMEOUT) while the plain-socket "
                             "floor was measured, during a {}; check that its process runs and "
                             "that the network to it works",
                             TimeoutOf(fd).count(), call));
  }
  return Error(Code::kPeerLost, fmt::format("is lost to a socket of the plain-socket floor: {}: {}",
                                            call, std::strerror(error_number)));
}

Status SendAll(int fd, std::span<const std::byte> bytes, std::uint64_t chunk) {
  while (!bytes.empty()) {
    const ssize_t sent =
        ::send(fd, bytes.data(), std::min<std::uint64_t>(bytes.size(), chunk), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return FloorError(fd, "send", sent);
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
  return Ok();
}

Status RecvAll(int fd, std::span<std::byte> bytes, std::uint64_t chunk) {
  while (!bytes.empty()) {
    const ssize_t got = ::recv(fd, bytes.data(), std::min<std::uint64_t>(bytes.size(), chunk), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return FloorError(fd, "recv", got);
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
  return Ok();
}

Status SendCredits(int fd, std::uint64_t count) {
  const std::vector<std::byte> credits(count);
  return SendAll(fd, credits, count);
}

// At least one of at most `most`.
Result<std::uint64_t> RecvCredits(int fd, std::uint64_t most) {
  std::array<std::byte, 64> credits{};
  for (;;) {
    const ssize_t got =
        ::recv(fd, credits.data(), std::min<std::uint64_t>(most, credits.size()), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return FloorError(fd, "recv", got);
    return static_cast<std::uint64_t>(got);
  }
}

// Keeps as many operations in flight as ferry does, by credits: a byte that the consumer sends for
// each share. Written: a credit comes back for each one received, and the first `depth` are free.
// Read: nothing is sent that was not asked for, which costs the round trip that a read has.
Status ProduceShare(int fd, std::span<const std::byte> share, const FloorRun& run) {
  std::uint64_t credits = run.asked_for ? 0 : run.depth;
  std::uint64_t owed = run.count;
  for (std::uint64_t i = 0; i < run.count; ++i) {
    while (credits == 0) {
      FERRY_TRY_ASSIGN(credits, RecvCredits(fd, owed));
      owed -= credits;
    }
    --credits;
    FERRY_TRY(SendAll(fd, share, run.chunk));
  }
  // The end of the run is that the consumer has all bytes, not that they are in a socket.
  while (owed > 0) {
    FERRY_TRY_ASSIGN(const std::uint64_t got, RecvCredits(fd, owed));
    owed -= got;
  }
  return Ok();
}

Status ConsumeShare(int fd, std::span<std::byte> share, const FloorRun& run) {
  std::uint64_t asked = run.asked_for ? std::min(run.depth, run.count) : 0;
  FERRY_TRY(SendCredits(fd, asked));
  for (std::uint64_t i = 0; i < run.count; ++i) {
    FERRY_TRY(RecvAll(fd, share, run.chunk));
    // All have been asked for.
    if (run.asked_for && asked == run.count) continue;
    FERRY_TRY(SendCredits(fd, 1));
    ++asked;
  }
  return Ok();
}

// The part of `buffer` that socket `index` of `count` moves.
template <class Byte>
std::span<Byte> ShareOf(std::span<Byte> buffer, std::size_t index, std::size_t count) {
  const auto edge = [&](std::size_t i) -> std::size_t {
    // Edges on cache lines, so that no two threads write the same one.
    return i == count ? buffer.size() : buffer.size() / count * i / kAlignment * kAlignment;
  };
  return buffer.subspan(edge(index), edge(index + 1) - edge(index));
}

// Runs `work(socket, index)` in a thread for each socket; the first error of any. Without a thread
// for each the sockets are shut down, so that those that there are end.
Status OnEach(std::span<const UniqueFd> sockets,
              const std::function<Status(int, std::size_t)>& work) {
  std::vector<std::optional<Error>> errors(sockets.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < sockets.size(); ++i) {
    auto thread = StartThread("a socket of the floor", [&, i] {
      const Status status = work(sockets[i].get(), i);
      if (!status) errors[i] = status.error();
    });
    if (!thread) {
      for (const UniqueFd& each : sockets) (void)::shutdown(each.get(), SHUT_RDWR);
      for (std::thread& other : threads) other.join();
      return thread.error();
    }
    (void)::pthread_setname_np(thread->native_handle(), "ferry-floor");
    threads.push_back(*std::move(thread));
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& error : errors) {
    if (error) return *error;
  }
  return Ok();
}

Status RecvPing(int fd, bool spin) {
  std::array<std::byte, kPingBytes> ping{};
  if (!spin) return RecvAll(fd, ping, ping.size());
  const Deadline deadline = Deadline::After(TimeoutOf(fd));
  for (std::size_t have = 0, tries = 0; have < ping.size(); ++tries) {
    const ssize_t got = ::recv(fd, ping.data() + have, ping.size() - have, MSG_DONTWAIT);
    if (got > 0) {
      have += static_cast<std::size_t>(got);
      continue;
    }
    const bool empty = got < 0 && (errno == EAGAIN || errno == EINTR);
    const bool glance = tries % kTriesPerGlance == 0;
    if (empty && glance && Interrupted()) return InterruptedError();
    const bool late = empty && glance && deadline.expired();
    if (late) errno = EAGAIN;
    if (!empty || late) return FloorError(fd, "recv", got);
  }
  return Ok();
}

Status SendPing(int fd) {
  const std::array<std::byte, kPingBytes> ping{};
  return SendAll(fd, ping, ping.size());
}

// A blocking socket with the lanes' options.
Status Prepare(int fd, const Config& config) {
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(config.peer_timeout);
  const timeval timeout{.tv_sec = seconds.count(), .tv_usec = 0};
  // Blocking calls, one thread for each socket: the plainest code that moves bytes fast.
  const int flags = ::fcntl(fd, F_GETFL);
  if (::fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) != 0 ||
      ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) != 0 ||
      ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout) != 0) {
    return ErrnoError("options of a socket of the floor", errno);
  }
  FERRY_TRY(net::tcp::ConfigureConnected(fd, config));
  return Ok();
}

Status WaitFor(int fd, short events, Deadline deadline) {
  pollfd entry{.fd = fd, .events = events, .revents = 0};
  int ready = 0;
  do {
    ready = ::poll(&entry, 1, deadline.PollMillis());
  } while (ready < 0 && errno == EINTR && !Interrupted());
  if (ready > 0) return Ok();
  return Error(Code::kTimedOut, "the sockets of the floor were not connected in time");
}

Result<UniqueFd> ConnectOne(const Config& config, const net::RawAddress& address,
                            Deadline deadline) {
  FERRY_TRY_ASSIGN(UniqueFd fd, net::tcp::OpenSocket(address.family(), config));
  if (::connect(fd.get(), address.get(), address.length) != 0 && errno != EINPROGRESS) {
    return ErrnoError("connecting a socket of the floor", errno);
  }
  FERRY_TRY(WaitFor(fd.get(), POLLOUT, deadline));
  int error = 0;
  socklen_t length = sizeof error;
  (void)::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) return ErrnoError("connecting a socket of the floor", error);
  FERRY_TRY(Prepare(fd.get(), config));
  return fd;
}

// On the first free port of config.port_range.
Status Listen(int fd, const Config& config, net::Address address) {
  int error = EADDRINUSE;
  for (std::uint32_t port = config.port_first; port <= config.port_last; ++port) {
    address.port = static_cast<std::uint16_t>(port);
    FERRY_TRY_ASSIGN(const net::RawAddress raw, net::ToRaw(address));
    if (::bind(fd, raw.get(), raw.length) == 0 && ::listen(fd, SOMAXCONN) == 0) return Ok();
    error = errno;
  }
  return Error(
      Code::kUnavailable,
      fmt::format("no port of {}-{} for the floor on {}: {}; widen port_range", config.port_first,
                  config.port_last, address.host, std::strerror(error)));
}

}  // namespace

Result<FloorSockets> FloorSockets::Connect(const Config& config, const net::Address& address,
                                           const Uuid& token, std::size_t count,
                                           Deadline deadline) {
  FERRY_TRY_ASSIGN(const net::RawAddress raw, net::ToRaw(address));
  FloorSockets floor(count);
  floor.peer_ = address.ToString();
  for (std::size_t i = 0; i < count; ++i) {
    FERRY_TRY_ASSIGN(floor.sockets_[i], ConnectOne(config, raw, deadline));
    const Hello hello{token.bytes, static_cast<std::uint32_t>(i)};
    FERRY_TRY(floor.Named(
        SendAll(floor.sockets_[i].get(), std::as_bytes(std::span(&hello, 1)), sizeof hello)));
  }
  return floor;
}

Status FloorSockets::Named(const Status& status) const {
  if (status || status.error().code() != Code::kPeerLost) return status;
  return Error(Code::kPeerLost, peer_ + " " + status.error().message(), status.error().where());
}

std::span<const UniqueFd> FloorSockets::SocketsFor(std::size_t bytes) const {
  const std::span<const UniqueFd> all = sockets_;
  return all.first(bytes < all.size() * kMinShare ? 1 : all.size());
}

Status FloorSockets::Produce(std::span<const std::byte> buffer, const FloorRun& run) {
  const auto sockets = SocketsFor(buffer.size());
  return Named(OnEach(sockets, [&](int fd, std::size_t index) {
    return ProduceShare(fd, ShareOf(buffer, index, sockets.size()), run);
  }));
}

Status FloorSockets::Consume(std::span<std::byte> buffer, const FloorRun& run) {
  const auto sockets = SocketsFor(buffer.size());
  return Named(OnEach(sockets, [&](int fd, std::size_t index) {
    return ConsumeShare(fd, ShareOf(buffer, index, sockets.size()), run);
  }));
}

Status FloorSockets::Ping(const Pings& pings, std::vector<double>* half_round_trips) {
  const int fd = sockets_.front().get();
  for (std::uint64_t i = 0; i < pings.count; ++i) {
    const auto begin = Clock::now();
    FERRY_TRY(Named(SendPing(fd)));
    FERRY_TRY(Named(RecvPing(fd, pings.spin)));
    const std::chrono::duration<double> round_trip = Clock::now() - begin;
    half_round_trips->push_back(round_trip.count() / 2);
  }
  return Ok();
}

Status FloorSockets::Pong(const Pings& pings) {
  const int fd = sockets_.front().get();
  for (std::uint64_t i = 0; i < pings.count; ++i) {
    FERRY_TRY(Named(RecvPing(fd, pings.spin)));
    FERRY_TRY(Named(SendPing(fd)));
  }
  return Ok();
}

Result<FloorListener> FloorListener::Open(const Config& config, const std::string& host) {
  FERRY_TRY_ASSIGN(const net::RawAddress raw, net::ToRaw({host, 0}));
  FERRY_TRY_ASSIGN(UniqueFd fd, net::tcp::OpenSocket(raw.family(), config));
  FERRY_TRY(Listen(fd.get(), config, {host, 0}));
  FERRY_TRY_ASSIGN(const net::Address bound, net::tcp::LocalAddressOf(fd.get()));
  return FloorListener(std::move(fd), bound.port);
}

Result<UniqueFd> FloorListener::AcceptOne(const Config& config, Deadline deadline) {
  for (;;) {
    FERRY_TRY(WaitFor(fd_.get(), POLLIN, deadline));
    UniqueFd socket(::accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket && (errno == EINTR || errno == EAGAIN || errno == ECONNABORTED)) continue;
    if (!socket) return ErrnoError("accepting a socket of the floor", errno);
    FERRY_TRY(Prepare(socket.get(), config));
    return socket;
  }
}

Result<FloorSockets> FloorListener::Accept(const Config& config, std::size_t count,
                                           Deadline deadline) {
  FloorSockets floor(count);
  for (std::size_t left = count; left > 0;) {
    FERRY_TRY_ASSIGN(UniqueFd socket, AcceptOne(config, deadline));
    Hello hello{};
    const auto timeout = Deadline::After(kHelloTimeout).Sooner(deadline);
    const bool heard =
        WaitFor(socket.get(), POLLIN, timeout) &&
        RecvAll(socket.get(), std::as_writable_bytes(std::span(&hello, 1)), sizeof hello);
    const bool ours =
        heard && hello.token == token_.bytes && hello.index < count && !floor.sockets_[hello.index];
    // The token was agreed on over the connection, so that nobody else's socket is counted in.
    if (!ours) continue;  // an unknown peer on our port
    floor.peer_ = PeerOf(socket.get());
    floor.sockets_[hello.index] = std::move(socket);
    --left;
  }
  return floor;
}

}  // namespace ferry::tools
