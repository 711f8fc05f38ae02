// Implements the rate measurement of one plain TCP connection.

#include "tests/links/plain_rate.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <stdexcept>
#include <vector>

#include "ferry/core/fd.h"
#include "tests/links/network_pair.h"

namespace ferry::tests {
namespace {

constexpr std::size_t kBlock = 256 * 1024;
// Until the connection is at its rate.
constexpr milliseconds kWarmUp{50};
// For one call of the kernel, in seconds.
constexpr timeval kCallLimit{10, 0};

struct InfoCloser {
  void operator()(addrinfo* info) const noexcept { ::freeaddrinfo(info); }
};
using AddressInfo = std::unique_ptr<addrinfo, InfoCloser>;

void Check(bool good, const char* what) {
  if (!good) throw std::runtime_error(ErrnoError(what, errno).message());
}

AddressInfo Resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    throw std::runtime_error("plain rate: not an address: " + host);
  }
  return AddressInfo(found);
}

UniqueFd Listen(const std::string& network, const std::string& host, int* port) {
  EnterNetwork(network);
  const AddressInfo at = Resolve(host, 0);
  UniqueFd listening(::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Check(static_cast<bool>(listening), "plain rate: socket");
  Check(::setsockopt(listening.get(), SOL_SOCKET, SO_RCVTIMEO, &kCallLimit, sizeof kCallLimit) == 0,
        "plain rate: SO_RCVTIMEO");
  Check(::bind(listening.get(), at->ai_addr, at->ai_addrlen) == 0, "plain rate: bind");
  Check(::listen(listening.get(), 1) == 0, "plain rate: listen");
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  Check(::getsockname(listening.get(), reinterpret_cast<sockaddr*>(&bound), &size) == 0,
        "plain rate: getsockname");
  // The port lies at the same place in both families.
  *port = ntohs(reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
  return listening;
}

void SendFor(const std::string& network, const std::string& host, int port, milliseconds time) {
  EnterNetwork(network);
  const AddressInfo at = Resolve(host, port);
  const UniqueFd fd(::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Check(static_cast<bool>(fd), "plain rate: socket");
  Check(::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &kCallLimit, sizeof kCallLimit) == 0,
        "plain rate: SO_SNDTIMEO");
  Check(::connect(fd.get(), at->ai_addr, at->ai_addrlen) == 0, "plain rate: connect");
  const std::vector<std::byte> block(kBlock);
  for (const auto end = Deadline::After(kWarmUp + time); !end.expired();) {
    Check(::send(fd.get(), block.data(), block.size(), MSG_NOSIGNAL) > 0, "plain rate: send");
  }
}

double ReceivedRate(const UniqueFd& listening) {
  const UniqueFd fd(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
  Check(static_cast<bool>(fd), "plain rate: accept");
  Check(::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &kCallLimit, sizeof kCallLimit) == 0,
        "plain rate: SO_RCVTIMEO");
  const auto begun = Clock::now() + kWarmUp;
  std::vector<std::byte> block(kBlock);
  double bytes = 0;
  auto last = begun;
  for (;;) {
    const ssize_t got = ::recv(fd.get(), block.data(), block.size(), 0);
    Check(got >= 0, "plain rate: recv");
    if (got == 0) break;
    last = Clock::now();
    if (last > begun) bytes += static_cast<double>(got);
  }
  return last > begun ? bytes / std::chrono::duration<double>(last - begun).count() : 0;
}

}  // namespace

double PlainRate(const std::string& from, const std::string& to, const std::string& host,
                 milliseconds time) {
  // In threads of their own, because EnterNetwork() takes the calling thread along.
  int port = 0;
  const UniqueFd listening =
      std::async(std::launch::async, [&] { return Listen(to, host, &port); }).get();
  auto sent = std::async(std::launch::async, [&] { SendFor(from, host, port, time); });
  const double rate = ReceivedRate(listening);
  sent.get();
  return rate;
}

}  // namespace ferry::tests
