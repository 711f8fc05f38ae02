// Socket options, congestion control and resets.
#pragma once
#include <string>

#include "ferry/core/config.h"
#include "ferry/core/fd.h"
#include "ferry/core/result.h"
#include "ferry/net/address.h"
#include "ferry/net/interface_table.h"
#include "ferry/net/provider.h"

namespace ferry::net::tcp {

// A non-blocking TCP socket with the options that must be set before connect() or listen(). Forked
// children do not have it.
Result<UniqueFd> OpenSocket(int family, const Config& config);

// Options of a connected socket: no delay, liveness (keepalive and TCP_USER_TIMEOUT from
// config.peer_timeout), rate limit, congestion control. Returns the one in force with the reason
// for it.
//
// "auto" replaces BBR towards near peers (loopback, or a round trip under 1 ms) by cubic, or by
// reno where the process may not choose cubic: on a 2-core machine BBR's pacing timers halve the
// rate over loopback (2.5 against 5.4 GB/s), and far away BBR may have been chosen with care.
Result<std::string> ConfigureConnected(int fd, const Config& config);

// Drops what the socket has not delivered and tells the peer by a reset; close it then. Closing
// alone, with SO_LINGER, waits for the last holder of the descriptor, who may be another process:
// until then the kernel goes on sending. Dissolving the connection (connect(2), AF_UNSPEC) does not
// wait; SO_LINGER is for systems whose sockets cannot do that.
void ResetConnection(int fd) noexcept;

Result<Address> LocalAddressOf(int fd);
Result<Address> RemoteAddressOf(int fd);
// The kernel's present buffer sizes and names, for reports.
LaneInfo DescribeSocket(int fd, InterfaceTable* interfaces);
void DescribeBuffers(int fd, LaneInfo* info);
// Whether the peer's address is a loopback address or this side's own.
bool IsSameMachine(const Address& local, const Address& remote);

}  // namespace ferry::net::tcp
