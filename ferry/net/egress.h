// Whether what a socket sends leaves this machine.
#pragma once

namespace ferry::net {

// Whether the kernel routes a connected TCP socket's packets through a network device of the
// machine (one that has a bus). False for loopback and for everything that may lead to another
// network namespace of this machine: veth, bridges, tunnels; also for VLANs and bonds, and where
// the kernel does not tell (before Linux 5.14). Where it is true, the pages of a sent payload are
// no longer read once the peer's TCP has acknowledged it.
bool LeavesThroughDevice(int socket);

}  // namespace ferry::net
