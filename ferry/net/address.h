// Network addresses, local interfaces and routes.
#pragma once
#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ferry/core/result.h"

namespace ferry::net {

// A numeric IP address or, before Resolve() (resolve.h), a host name; and a TCP port. An empty host
// means all local addresses.
struct Address {
  std::string host;
  std::uint16_t port = 0;

  bool operator==(const Address&) const = default;
  // "127.0.0.1:80", "[::1]:80"
  std::string ToString() const;
};

// Parses "host", "host:port", "[v6]:port" or a bare IPv6 address; `default_port` where none is
// given. Errors: kInvalidArgument naming the text.
Result<Address> ParseAddress(std::string_view text, std::uint16_t default_port);

// A socket address and its length, for the system calls.
struct RawAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const noexcept;
  int family() const noexcept { return storage.ss_family; }
};

// `address` must be numeric. Errors: kInvalidArgument.
Result<RawAddress> ToRaw(const Address& address);
Address FromRaw(const RawAddress& raw);
bool IsLoopback(const RawAddress& raw) noexcept;
// Whether a socket that connects to `to`, a port of this machine at which nobody listens, was given
// that very port as its own, and so talks to itself (RFC 9293, 3.5, simultaneous open). That takes
// one dial in about 14,000, and keeps whoever wants to listen there from it. If so, closing the
// socket will leave nothing behind.
bool TalksToItself(int fd, const RawAddress& to) noexcept;

// Of "host:port" or "[v6]:port", the host as it stands there.
std::string_view HostOf(std::string_view host_and_port) noexcept;

// Name of the interface that holds a local numeric address ("" if none does).
std::string InterfaceOf(const Address& local);

struct LocalAddress {
  std::string interface;
  std::string host;
};
// Addresses that a peer on another machine can be told: up, not loopback, not a bridge or a
// container's veth, not link-local.
std::vector<LocalAddress> AdvertisableAddresses();

// Every address of this machine's interfaces, and those of them that AdvertisableAddresses() names.
// Reads them all from the system: the cost grows with their number (InterfaceTable remembers them).
struct LocalAddresses {
  std::vector<LocalAddress> all;
  std::vector<LocalAddress> advertisable;
};
// Nothing where the system does not tell now (no descriptor or memory left).
std::optional<LocalAddresses> ReadLocalAddresses();

// The local address from which the kernel's routes send what goes to a numeric address. Errors: as
// RouteTo().
Result<std::string> SourceTo(const Address& to);

// Where the kernel's routes send what goes to a numeric address.
struct Route {
  std::string interface;
  std::string source;  // the local address
};
// Errors: kInvalidArgument (not numeric), kPeerLost (no route).
Result<Route> RouteTo(const Address& to);

// Whether a list like "eth0,eth1" or "ens*" names an interface; one that begins with "^" names
// those that are left out. Patterns are those of glob(7). An empty list allows all.
bool InterfaceAllowed(std::string_view list, std::string_view interface);

}  // namespace ferry::net
