// Socket options, congestion control and resets.
#pragma once
#include <string>

#include "ferry/core/config.h"
#include "ferry/core/fd.h"
#include "ferry/core/result.h"
#include "ferry/net/address.h"
#include "ferry/net/machine/interface_table.h"
#include "ferry/net/provider.h"

namespace ferry::net::tcp {

// Creates a non-blocking TCP socket and sets the options that must precede connect() or listen().
// Forked children close it.
Result<UniqueFd> OpenSocket(int family, const Config& config);

// Sets the options of a connected socket: no delay, liveness (keepalive and TCP_USER_TIMEOUT from
// config.peer_timeout), rate limit, congestion control. Returns the congestion control in force,
// with the reason for it.
//
// "auto" replaces BBR towards near peers (loopback, or a round trip under 1 ms) by cubic, or by
// reno where the process may not choose cubic: on a 2-core machine BBR's pacing timers halve the
// rate over loopback (2.5 instead of 5.4 GB/s). Towards distant peers BBR is kept, because it may
// have been chosen deliberately.
Result<std::string> ConfigureConnected(int fd, const Config& config);

// Drops undelivered data and resets the connection; close the socket afterwards. close() with
// SO_LINGER waits for the last holder of the descriptor, which may be another process, and until
// then the kernel keeps sending. Dissolving the connection (connect(2), AF_UNSPEC) does not wait;
// SO_LINGER is the fallback where the kernel does not support that.
void ResetConnection(int fd) noexcept;

Result<Address> LocalAddressOf(int fd);
Result<Address> RemoteAddressOf(int fd);
// The addresses, interface and current buffer sizes of a socket, for reports.
LaneInfo DescribeSocket(int fd, InterfaceTable* interfaces);
void DescribeBuffers(int fd, LaneInfo* info);
// Whether the peer's address is loopback or equals this side's address.
bool IsSameMachine(const Address& local, const Address& remote);

}  // namespace ferry::net::tcp
