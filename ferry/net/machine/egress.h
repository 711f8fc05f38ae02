// The interfaces by which packets leave this machine.
#pragma once
#include <string>

#include "ferry/net/address.h"

namespace ferry::net {

// The index of the interface through which the kernel routes a connected socket's packets; 0 if
// they stay in this network namespace, or if the kernel does not tell. Follows routing rules by
// mark, user, protocol and ports too (ip-rule(8)). Concerns the network namespace of the calling
// thread.
int EgressOf(int socket);

// Whether the kernel routes a connected TCP socket's packets through a network device of the
// machine (one that has a bus). False for loopback and for everything that may lead to another
// network namespace of this machine: veth, bridges, tunnels; also for VLANs and bonds, and where
// the kernel does not tell (before Linux 5.14). Where it is true, the pages of a sent payload are
// no longer read once the peer's TCP has acknowledged it.
bool LeavesThroughDevice(int socket);

// Whether the routing table has a way to another machine's numeric address by this interface, the
// best one or not. False where the kernel does not tell (before Linux 4.13). Concerns the network
// namespace of the calling thread.
bool LeadsTo(const std::string& interface, const Address& to);

}  // namespace ferry::net
