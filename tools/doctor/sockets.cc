// Names, routes and connections of this machine.
#include <fmt/core.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "ferry/core/fd.h"
#include "tools/doctor/machine.h"

namespace ferry::tools {
namespace {

constexpr auto kNetlinkAnswer = std::chrono::seconds(1);

int GetInt(int fd, int level, int option) {
  int value = 0;
  socklen_t length = sizeof value;
  return ::getsockopt(fd, level, option, &value, &length) == 0 ? value : 0;
}

// ---- routes (rtnetlink(7)) ----------------------------------------------------------------------

struct RouteRequest {
  nlmsghdr header{};
  rtmsg message{};
  std::array<std::byte, 64> attributes{};
};

// The bytes of an IP address within a socket address.
std::span<const std::byte> AddressBytes(const net::RawAddress& raw) {
  const auto all = std::as_bytes(std::span(&raw.storage, 1));
  return raw.family() == AF_INET ? all.subspan(offsetof(sockaddr_in, sin_addr), sizeof(in_addr))
                                 : all.subspan(offsetof(sockaddr_in6, sin6_addr), sizeof(in6_addr));
}

std::string TextOf(int family, std::span<const std::byte> bytes) {
  net::RawAddress raw;
  raw.storage.ss_family = static_cast<sa_family_t>(family);
  const std::size_t offset =
      family == AF_INET ? offsetof(sockaddr_in, sin_addr) : offsetof(sockaddr_in6, sin6_addr);
  const std::size_t size = family == AF_INET ? sizeof(in_addr) : sizeof(in6_addr);
  if (bytes.size() < size) return "";
  std::memcpy(std::as_writable_bytes(std::span(&raw.storage, 1)).data() + offset, bytes.data(),
              size);
  return net::FromRaw(raw).host;
}

void Put(std::span<std::byte> to, std::size_t* used, std::uint16_t type,
         std::span<const std::byte> value) {
  rtattr attribute{};
  attribute.rta_type = type;
  attribute.rta_len = static_cast<std::uint16_t>(RTA_LENGTH(value.size()));
  std::memcpy(to.data() + *used, &attribute, sizeof attribute);
  std::memcpy(to.data() + *used + RTA_LENGTH(0), value.data(), value.size());
  *used += RTA_ALIGN(attribute.rta_len);
}

RouteRequest RequestFor(const net::RawAddress& raw, std::uint32_t scope) {
  RouteRequest request;
  const auto bytes = AddressBytes(raw);
  std::size_t used = 0;
  Put(request.attributes, &used, RTA_DST, bytes);
  if (scope != 0) {
    Put(request.attributes, &used, RTA_OIF, std::as_bytes(std::span(&scope, 1)));
  }
  request.header.nlmsg_type = RTM_GETROUTE;
  request.header.nlmsg_flags = NLM_F_REQUEST;
  request.header.nlmsg_len = static_cast<std::uint32_t>(offsetof(RouteRequest, attributes) + used);
  request.message.rtm_family = static_cast<unsigned char>(raw.family());
  request.message.rtm_dst_len = static_cast<unsigned char>(8 * bytes.size());
  return request;
}

// One message: a header, the route, and attributes up to the end, each aligned to 4 bytes. An error
// message instead has a negative errno.
Result<Route> ParseRoute(int family, std::span<const std::byte> answer) {
  nlmsghdr header{};
  if (answer.size() < sizeof header) return Error(Code::kCorrupt, "netlink sent no answer");
  std::memcpy(&header, answer.data(), sizeof header);
  if (header.nlmsg_type == NLMSG_ERROR && answer.size() >= sizeof header + sizeof(int)) {
    int error = 0;
    std::memcpy(&error, answer.data() + NLMSG_HDRLEN, sizeof error);
    return Error(Code::kPeerLost, std::strerror(-error));
  }
  rtmsg message{};
  std::size_t at = NLMSG_LENGTH(sizeof message);
  if (answer.size() < at) return Error(Code::kCorrupt, "netlink sent a short answer");
  std::memcpy(&message, answer.data() + NLMSG_HDRLEN, sizeof message);
  if (message.rtm_type == RTN_UNREACHABLE || message.rtm_type == RTN_BLACKHOLE ||
      message.rtm_type == RTN_PROHIBIT) {
    return Error(Code::kPeerLost, "the routing table says that it cannot be reached");
  }
  Route route;
  route.local = message.rtm_type == RTN_LOCAL;
  while (at + sizeof(rtattr) <= answer.size()) {
    rtattr attribute{};
    std::memcpy(&attribute, answer.data() + at, sizeof attribute);
    if (attribute.rta_len < RTA_LENGTH(0) || at + attribute.rta_len > answer.size()) break;
    const auto value = answer.subspan(at + RTA_LENGTH(0), attribute.rta_len - RTA_LENGTH(0));
    if (attribute.rta_type == RTA_OIF && value.size() >= sizeof(int)) {
      unsigned index = 0;
      std::memcpy(&index, value.data(), sizeof index);
      std::array<char, IF_NAMESIZE> name{};
      if (::if_indextoname(index, name.data()) != nullptr) route.interface = name.data();
    }
    if (attribute.rta_type == RTA_GATEWAY) route.gateway = TextOf(family, value);
    if (attribute.rta_type == RTA_PREFSRC) route.source = TextOf(family, value);
    at += RTA_ALIGN(attribute.rta_len);
  }
  return route;
}

Result<Route> AskNetlink(const net::RawAddress& raw, std::uint32_t scope) {
  const UniqueFd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  if (!fd) return ErrnoError("a netlink socket", errno);
  const RouteRequest request = RequestFor(raw, scope);
  if (::send(fd.get(), &request, request.header.nlmsg_len, 0) < 0) {
    return ErrnoError("asking netlink for the route", errno);
  }
  pollfd entry{.fd = fd.get(), .events = POLLIN, .revents = 0};
  if (::poll(&entry, 1, Deadline::After(kNetlinkAnswer).PollMillis()) <= 0) {
    return Error(Code::kTimedOut, "netlink does not answer");
  }
  std::array<std::byte, 8192> answer{};
  const ssize_t got = ::recv(fd.get(), answer.data(), answer.size(), MSG_DONTWAIT);
  if (got < 0) return ErrnoError("netlink", errno);
  return ParseRoute(raw.family(), std::span(answer).first(static_cast<std::size_t>(got)));
}

// ---- connections --------------------------------------------------------------------------------

struct Attempt {
  UniqueFd fd;
  Dialed outcome;
};

Attempt Begin(const net::Address& address) {
  Attempt attempt;
  attempt.outcome.at = address;
  attempt.outcome.error = EINPROGRESS;
  const auto raw = net::ToRaw(address);
  if (!raw) {
    attempt.outcome.error = EINVAL;
    return attempt;
  }
  attempt.fd = UniqueFd(::socket(raw->family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const bool begun = attempt.fd && ::connect(attempt.fd.get(), raw->get(), raw->length) == 0;
  if (!begun && errno != EINPROGRESS) attempt.outcome.error = errno;
  return attempt;
}

void End(Attempt* attempt) {
  const int fd = attempt->fd.get();
  attempt->outcome.error = GetInt(fd, SOL_SOCKET, SO_ERROR);
  if (attempt->outcome.error != 0) return;
  tcp_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return;
  attempt->outcome.rtt_us = info.tcpi_rtt;
  attempt->outcome.peer_segment = static_cast<int>(info.tcpi_snd_mss);
  attempt->outcome.path_mtu = static_cast<int>(info.tcpi_pmtu);
}

}  // namespace

Result<Route> FindRoute(const net::Address& numeric) {
  net::Address somewhere = numeric;
  somewhere.port = 9;  // of UDP: nothing is sent
  FERRY_TRY_ASSIGN(const net::RawAddress raw, net::ToRaw(somewhere));
  std::uint32_t scope = 0;
  if (raw.family() == AF_INET6) {
    sockaddr_in6 ipv6{};
    std::memcpy(&ipv6, &raw.storage, sizeof ipv6);
    scope = ipv6.sin6_scope_id;
  }
  // The route from netlink, the MTU of the path from a connected UDP socket: the kernel remembers
  // there what it has learned about the path. Neither sends a packet.
  FERRY_TRY_ASSIGN(Route route, AskNetlink(raw, scope));
  const UniqueFd fd(::socket(raw.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd) return ErrnoError("a UDP socket", errno);
  if (::connect(fd.get(), raw.get(), raw.length) != 0) return ErrnoError("connect", errno);
  route.mtu = raw.family() == AF_INET ? GetInt(fd.get(), IPPROTO_IP, IP_MTU)
                                      : GetInt(fd.get(), IPPROTO_IPV6, IPV6_MTU);
  return route;
}

std::vector<Dialed> DialAll(const std::vector<net::Address>& numeric, Deadline deadline) {
  std::vector<Attempt> attempts;
  attempts.reserve(numeric.size());
  for (const net::Address& address : numeric) attempts.push_back(Begin(address));
  for (;;) {
    std::vector<pollfd> entries;
    std::vector<Attempt*> waiting;
    for (Attempt& attempt : attempts) {
      if (attempt.outcome.error != EINPROGRESS) continue;
      entries.push_back({.fd = attempt.fd.get(), .events = POLLOUT, .revents = 0});
      waiting.push_back(&attempt);
    }
    if (waiting.empty()) break;
    // All attempts share the deadline. One that is still in progress then has timed out.
    const int ready = ::poll(entries.data(), entries.size(), deadline.PollMillis());
    if (ready < 0 && errno == EINTR) continue;
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      if (entries[i].revents != 0) {
        End(waiting[i]);
      } else if (ready <= 0) {
        waiting[i]->outcome.error = ETIMEDOUT;
      }
    }
  }
  std::vector<Dialed> outcomes;
  outcomes.reserve(attempts.size());
  for (Attempt& attempt : attempts) outcomes.push_back(std::move(attempt.outcome));
  return outcomes;
}

}  // namespace ferry::tools
