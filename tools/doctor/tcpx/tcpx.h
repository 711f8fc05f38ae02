// Doctor checks for Google's GPUDirect-TCPX plugin (3.1.9): machine and settings, in the order of
// docs/tcpx.md. They do not load the plugin, because only its first start in a process takes
// effect.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/tcpx/tcpx_judge.h"
#include "tools/doctor/check.h"
#include "tools/doctor/checks.h"
#include "tools/doctor/system.h"
#include "tools/doctor/tcpx/plugin_file.h"

namespace ferry::tools {

// The variable with which a user names the file of a network plugin;
// tcpx::kUcclPluginVariable is another.
inline constexpr const char* kPluginVariable = "FERRY_NET_PLUGIN";

// The inputs that the checks share.
struct TcpxSetup : PluginSetup {
  bool chosen = false;                       // NCCL_GPUDIRECTTCPX_SOCKET_IFNAME names interfaces
  std::vector<std::string> interfaces = {};  // that the plugin takes, sorted as it does
  std::vector<std::string> gpus = {};        // PCI addresses: "0000:04:00.0"
};
TcpxSetup TcpxSetupOf(SystemView* system);
// Whether a variable names a plugin or the file of GPUDirect-TCPX's exists.
bool HintsAtTcpx(const TcpxSetup& setup);

// Runs all checks if the user asked for them or a plugin is configured; otherwise one harmless
// check. `others` are the findings so far; facts in them are not checked twice.
std::vector<Check> CheckTcpx(SystemView* system, bool asked, const std::vector<Check>& others,
                             Deadline deadline);

// The ports on which the peer's plugin listens; nothing where CheckTcpx() has one check only.
std::optional<PortRange> TcpxPortRange(SystemView* system, bool asked);

// Whether data to the peer can take the data interfaces; nothing without a peer that was resolved,
// and where CheckTcpx() has one check only.
std::optional<Check> CheckTcpxPeer(const Context& context);

// The parts of CheckTcpx, which it calls in this order.
Check CheckTcpxPlugin(const TcpxSetup& setup);
Check CheckTcpxKernel(const TcpxSetup& setup);
Check CheckTcpxDriver(const TcpxSetup& setup);
Check CheckTcpxDaemon(const TcpxSetup& setup);
Check CheckTcpxInterfaces(const TcpxSetup& setup);
Check CheckTcpxControl(const TcpxSetup& setup);
Check CheckTcpxHeaderSplit(const TcpxSetup& setup, Deadline deadline);
Check CheckTcpxSteering(const TcpxSetup& setup);
Check CheckTcpxMtu(const TcpxSetup& setup);
Check CheckTcpxDistance(const TcpxSetup& setup);
Check CheckTcpxChunkSize(const TcpxSetup& setup);
Check CheckTcpxSetupWait(const TcpxSetup& setup);
Check CheckTcpxVariables(const TcpxSetup& setup);
Check CheckTcpxSysctls(const TcpxSetup& setup);
Check CheckTcpxPorts(const TcpxSetup& setup);
Check CheckTcpxLimits(const TcpxSetup& setup, const std::vector<Check>& others);

// ---- what they share ----------------------------------------------------------------------------

using tcpx::TcpxEntries;  // NOLINT: for those who include this
using tcpx::TcpxMatches;  // NOLINT: for those who include this
// The chunk size in bytes; nothing if it is not set or is not a number above 0.
std::optional<std::uint64_t> TcpxChunkSize(const TcpxSetup& setup);

}  // namespace ferry::tools
