// Parses addresses and reads interfaces and routes from the kernel.
#include "ferry/net/address.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <fnmatch.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "ferry/core/fd.h"

namespace ferry::net {
namespace {

// The discard service's. Only the route is looked up, and nothing is sent.
constexpr std::uint16_t kAnyPort = 9;

struct IfaddrsDeleter {
  void operator()(ifaddrs* list) const noexcept { ::freeifaddrs(list); }
};
using Ifaddrs = std::unique_ptr<ifaddrs, IfaddrsDeleter>;

Ifaddrs ListInterfaces() {
  ifaddrs* list = nullptr;
  return ::getifaddrs(&list) == 0 ? Ifaddrs(list) : nullptr;
}

RawAddress RawOf(const sockaddr* address) {
  RawAddress raw;
  raw.length = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::memcpy(&raw.storage, address, raw.length);
  return raw;
}

bool IsIp(const sockaddr* address) {
  return address != nullptr && (address->sa_family == AF_INET || address->sa_family == AF_INET6);
}

Result<std::uint16_t> ParsePort(std::string_view text, std::string_view whole) {
  std::uint16_t port = 0;
  // Takes neither sign nor space, and refuses numbers beyond 16 bits.
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size()) {
    return Error(
        Code::kInvalidArgument,
        fmt::format("address \"{}\" has port \"{}\"; give a number from 0 to 65535", whole, text));
  }
  return port;
}

}  // namespace

std::string Address::ToString() const {
  if (host.find(':') != std::string::npos) return fmt::format("[{}]:{}", host, port);
  return fmt::format("{}:{}", host.empty() ? "*" : host, port);
}

Result<Address> ParseAddress(std::string_view text, std::uint16_t default_port) {
  if (!text.empty() && text.front() == '[') {
    const auto close = text.find(']');
    if (close == std::string_view::npos || (close + 1 < text.size() && text[close + 1] != ':')) {
      return Error(Code::kInvalidArgument,
                   fmt::format("address \"{}\" should look like [::1]:{}", text, default_port));
    }
    Address address{std::string(text.substr(1, close - 1)), default_port};
    if (close + 1 < text.size()) {
      FERRY_TRY_ASSIGN(address.port, ParsePort(text.substr(close + 2), text));
    }
    return address;
  }
  const auto colon = text.find(':');
  // No colon: a host alone. More than one, without brackets: an IPv6 address alone.
  if (colon == std::string_view::npos || text.find(':', colon + 1) != std::string_view::npos) {
    return Address{std::string(text), default_port};
  }
  FERRY_TRY_ASSIGN(const std::uint16_t port, ParsePort(text.substr(colon + 1), text));
  return Address{std::string(text.substr(0, colon)), port};
}

const sockaddr* RawAddress::get() const noexcept {
  // The socket calls take this type: any sockaddr may be stored in a sockaddr_storage.
  return reinterpret_cast<const sockaddr*>(&storage);
}

Result<RawAddress> ToRaw(const Address& address) {
  RawAddress raw;
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  if (::inet_pton(AF_INET, address.host.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(address.port);
    raw.length = sizeof v4;
    std::memcpy(&raw.storage, &v4, sizeof v4);
    return raw;
  }
  const auto percent = address.host.find('%');
  const std::string bare = address.host.substr(0, percent);
  // An empty host is ::, any address, which also takes IPv4 on a dual-stack socket.
  if (address.host.empty() || ::inet_pton(AF_INET6, bare.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(address.port);
    const bool scoped = percent != std::string::npos;
    if (scoped) v6.sin6_scope_id = ::if_nametoindex(address.host.c_str() + percent + 1);
    if (scoped && v6.sin6_scope_id == 0) {
      return Error(Code::kInvalidArgument,
                   fmt::format("\"{}\" names no interface of this machine", address.host));
    }
    raw.length = sizeof v6;
    std::memcpy(&raw.storage, &v6, sizeof v6);
    return raw;
  }
  return Error(Code::kInvalidArgument,
               fmt::format("\"{}\" is not a numeric IP address", address.host));
}

Address FromRaw(const RawAddress& raw) {
  char text[INET6_ADDRSTRLEN] = "";
  Address address;
  if (raw.family() == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &raw.storage, sizeof v4);
    (void)::inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
    address.port = ntohs(v4.sin_port);
    address.host = text;
    return address;
  }
  sockaddr_in6 v6{};
  std::memcpy(&v6, &raw.storage, sizeof v6);
  address.port = ntohs(v6.sin6_port);
  (void)::inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
  address.host = text;
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    address.host = address.host.substr(address.host.rfind(':') + 1);
  } else if (v6.sin6_scope_id != 0) {
    char name[IF_NAMESIZE] = "";
    if (::if_indextoname(v6.sin6_scope_id, name) != nullptr)
      address.host += fmt::format("%{}", name);
  }
  return address;
}

bool IsLoopback(const RawAddress& raw) noexcept {
  if (raw.family() == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &raw.storage, sizeof v4);
    return (ntohl(v4.sin_addr.s_addr) >> 24) == 127;
  }
  sockaddr_in6 v6{};
  std::memcpy(&v6, &raw.storage, sizeof v6);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) return v6.sin6_addr.s6_addr[12] == 127;
  return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr) != 0;
}

// The kernel may pick the very port that is dialled as the local one; TCP's simultaneous open then
// connects the socket to itself, without any listener. Reset, so that no TIME_WAIT holds the port.
bool TalksToItself(int fd, const RawAddress& to) noexcept {
  RawAddress local;
  local.length = sizeof local.storage;
  auto* name = reinterpret_cast<sockaddr*>(&local.storage);  // as in RawAddress::get()
  if (::getsockname(fd, name, &local.length) != 0 || FromRaw(local) != FromRaw(to)) return false;
  const linger now{.l_onoff = 1, .l_linger = 0};
  (void)::setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  return true;
}

std::string_view HostOf(std::string_view host_and_port) noexcept {
  return host_and_port.substr(0, host_and_port.rfind(':'));
}

// Reads all interfaces on each call; loops use InterfaceTable, which caches them.
std::string InterfaceOf(const Address& local) {
  // All of 127/8 is on the loopback interface, which lists only one address of it.
  if (const auto raw = ToRaw(local); raw && IsLoopback(*raw)) return "lo";
  const Ifaddrs list = ListInterfaces();
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    if (IsIp(entry->ifa_addr) && FromRaw(RawOf(entry->ifa_addr)).host == local.host) {
      return {entry->ifa_name, std::strcspn(entry->ifa_name, ":")};  // without an alias's label
    }
  }
  return "";
}

Result<std::string> SourceTo(const Address& to) {
  FERRY_TRY_ASSIGN(RawAddress raw, ToRaw({to.host, kAnyPort}));
  // Connecting a datagram socket looks up the route and sends nothing.
  const UniqueFd probe(::socket(raw.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!probe) return ErrnoError(fmt::format("cannot look up the route to {}", to.host), errno);
  RawAddress local;
  local.length = sizeof local.storage;
  auto* name = reinterpret_cast<sockaddr*>(&local.storage);  // as in RawAddress::get()
  if (::connect(probe.get(), raw.get(), raw.length) != 0 ||
      ::getsockname(probe.get(), name, &local.length) != 0) {
    const Error plain = ErrnoError(fmt::format("there is no route to {}", to.host), errno);
    return Error(Code::kPeerLost, plain.message());
  }
  return FromRaw(local).host;
}

Result<Route> RouteTo(const Address& to) {
  Route route;
  FERRY_TRY_ASSIGN(route.source, SourceTo(to));
  route.interface = InterfaceOf({route.source, 0});
  return route;
}

bool InterfaceAllowed(std::string_view list, std::string_view interface) {
  if (list.empty()) return true;
  const bool excludes = list.front() == '^';
  if (excludes) list.remove_prefix(1);
  const std::string name(interface);
  while (!list.empty()) {
    const auto comma = std::min(list.find(','), list.size());
    const std::string pattern(list.substr(0, comma));
    // As NCCL_SOCKET_IFNAME: "^" before the list turns it into a list of what is not used.
    if (::fnmatch(pattern.c_str(), name.c_str(), 0) == 0) return !excludes;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return excludes;
}

}  // namespace ferry::net
