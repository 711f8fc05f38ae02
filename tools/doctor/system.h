// Read-only interface through which `ferry doctor` looks at a machine; tests replace it.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/deadline.h"
#include "ferry/core/result.h"
#include "ferry/net/address.h"
#include "ferry/net/machine/local_addresses.h"
#include "ferry/net/machine/machine_view.h"
#include "ferry/transfer/connection.h"

namespace ferry::tools {

// The result of a program that has ended.
struct CommandEnd {
  int exit_code = -1;  // 128 plus the signal that ended it
  std::string out;
  std::string err;
};

// The route of packets from this machine to an address.
struct Route {
  std::string interface;
  std::string source;   // address
  std::string gateway;  // empty: the address is on the link
  bool local = false;   // the address is this machine's own
  int mtu = 0;          // of the path, as far as the kernel knows it; 0: unknown
};

// The outcome of a TCP connect.
struct Dialed {
  net::Address at;
  int error = 0;         // an errno; 0: connected, ETIMEDOUT: no answer
  int path_mtu = 0;      // of the connected socket (IP_MTU)
  int peer_segment = 0;  // bytes of a segment that both sides agreed on
  double rtt_us = 0;     // of the handshake
};

struct Limit {
  std::uint64_t soft = 0;
  std::uint64_t hard = 0;
};
inline constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};

struct ClockState {
  bool synchronised = false;
  std::int64_t max_error_us = 0;
};

using net::NicSwitches;  // NOLINT: for those who include this
using net::PathState;    // NOLINT: for those who include this

// The machine as `ferry doctor` reads it. No call changes anything, and every call returns by its
// deadline. For one thread. Tests substitute a fake machine.
class SystemView : public net::MachineView {
 public:
  // A file of /proc or /sys, up to 1 MiB of it, without the line end. Errors: as ErrnoError.
  virtual Result<std::string> ReadFile(const std::string& path) = 0;
  // As realpath(3). Errors: as ErrnoError.
  virtual Result<std::string> RealPath(const std::string& path) = 0;
  // A program of the system's folders (/usr/sbin, /usr/bin, ...), with no input. Errors:
  // kUnsupported (there is none), kTimedOut (it was killed), kUnavailable.
  virtual Result<CommandEnd> Run(const std::vector<std::string>& arguments, Deadline deadline) = 0;

  // Numeric addresses of a host. Errors: kInvalidArgument (unknown), kTimedOut.
  virtual Result<std::vector<net::Address>> Resolve(const net::Address& address,
                                                    Deadline deadline) = 0;
  // Errors: as ErrnoError, kPeerLost where there is no route.
  virtual Result<Route> RouteTo(const net::Address& numeric) = 0;
  // Connects to all addresses in parallel and closes the sockets; one outcome per address.
  virtual std::vector<Dialed> Dial(const std::vector<net::Address>& numeric, Deadline deadline) = 0;
  // As net::ReadInterfaces().
  virtual std::vector<net::InterfaceAddress> Addresses() = 0;
  // Whether this process may choose a congestion control that the kernel has loaded.
  virtual bool MayUse(const std::string& congestion_control) = 0;

  // RLIMIT_*; numbers are kUnlimited where nothing limits.
  virtual Limit LimitOf(int resource) = 0;
  // Numbers of the cores that this process may run on.
  virtual std::vector<int> Cores() = 0;
  // Errors: as ErrnoError.
  virtual Result<ClockState> Clock() = 0;
  // Tests whether pages can be spliced into a pipe (vmsplice). Errors: kUnsupported with the
  // reason.
  virtual Status ProbeVmsplice() = 0;
  // Connects as a program that uses the library does. Errors: those of Endpoint::Connect.
  virtual Result<transfer::ConnectionInfo> TryConnect(const Config& config,
                                                      const std::vector<net::Address>& numeric,
                                                      Deadline deadline) = 0;
};

}  // namespace ferry::tools
