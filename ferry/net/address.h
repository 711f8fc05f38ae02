// Network addresses, local interfaces and routes.
#pragma once
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>

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

// Parses "host", "host:port", "[v6]:port" or a bare IPv6 address; `default_port` applies where the
// text has none. Errors: kInvalidArgument naming the text.
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
// Whether this socket is connected to itself. That happens when the kernel gives a socket that
// connects to a local port with no listener that same port as its own (RFC 9293, 3.5, simultaneous
// open): about one dial in 14,000. It also keeps the real owner from listening on the port. If
// true, closing the socket frees the port at once.
bool TalksToItself(int fd, const RawAddress& to) noexcept;

// Returns the host part of "host:port" or "[v6]:port", with its brackets. A view of the argument.
std::string_view HostOf(std::string_view host_and_port) noexcept;

// Name of the interface that holds a local numeric address; "" if none does. Reads all interfaces
// from the system at each call.
std::string InterfaceOf(const Address& local);

struct LocalAddress {
  std::string interface;
  std::string host;

  bool operator==(const LocalAddress&) const = default;
};

// The local address that the kernel's routing table selects for a numeric destination. Errors: as
// RouteTo().
Result<std::string> SourceTo(const Address& to);

// The interface and source address that the kernel's routing table selects for a destination.
struct Route {
  std::string interface;
  std::string source;  // the local address
};
// `to` must be numeric. Sends nothing. Errors: kInvalidArgument (not numeric), kPeerLost (no
// route), kUnavailable (no descriptor is left).
Result<Route> RouteTo(const Address& to);

// Whether a list such as "eth0,eth1" or "ens*" allows an interface; a list that begins with "^"
// names the interfaces to exclude. Patterns are those of glob(7). An empty list allows all.
bool InterfaceAllowed(std::string_view list, std::string_view interface);

}  // namespace ferry::net
