// Proves which process of this user holds the other end of a connection within this machine.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "ferry/core/result.h"

namespace ferry::net {

class Lane;

// One end of a TCP connection: port and address in network order.
struct SocketEnd {
  std::array<std::uint32_t, 4> address{};  // IPv4: the first
  std::uint16_t port = 0;
};
struct SocketEnds {
  int family = 0;  // AF_INET for IPv4 over a dual-stack socket, too
  SocketEnd local;
  SocketEnd remote;
};
// Nothing if the socket is not connected.
std::optional<SocketEnds> EndsOf(int socket);

// Where a process lists its sockets, as it tells its peers. By itself it proves nothing.
struct ProcessHint {
  std::int32_t pid = 0;   // 0: none
  std::int32_t list = 0;  // the descriptor of its list

  bool operator==(const ProcessHint&) const = default;
};
// That of this process; none where the kernel has no memfd.
ProcessHint ThisProcess();

// Lists a socket of this process as long as it lives, which must be while the socket is open: "what
// this socket carries, this process itself sends and receives". A process that only forwards what
// others send lists nothing. Any thread.
class ListedSocket {
 public:
  explicit ListedSocket(int socket);
  ~ListedSocket();
  ListedSocket(const ListedSocket&) = delete;
  ListedSocket& operator=(const ListedSocket&) = delete;

 private:
  const std::uint64_t cookie_;  // the kernel's
};

// Whether the other end of this connected TCP socket is a listed socket of that process, which
// runs under our user id and in our user namespace. Everything is asked of the kernel: the socket
// at the other end of exactly this connection in this network namespace (sock_diag(7)), and that
// the process has this very socket and has listed it (proc(5)). So a proxy is not taken for the
// peer behind it, whoever runs it. 22 system calls; 8 for a process that was asked about less than
// a second ago. Any thread. False whenever something is missing, as under another pid namespace.
bool IsHeldBy(const ProcessHint& process, int socket);

// Whether the peer of a lane may be trusted without a secret: it must be proved to be `process`, as
// it says itself (Lane::ProvePeer). `peer_name`: its address, for messages. Errors: kRefused;
// kUnavailable without a descriptor to ask the kernel with.
Status RequireProof(Lane* lane, const ProcessHint& process, const std::string& peer_name);

}  // namespace ferry::net
