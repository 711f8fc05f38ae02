// Doctor checks for Google's GPUDirect-TCPX plugin (3.1.9): machine and settings, in the order of
// docs/tcpx.md. They do not load the plugin, because only its first start in a process takes
// effect.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/tools/doctor_check.h"
#include "ferry/tools/doctor_system.h"

namespace ferry::tools {

// By which a user names the file of a network plugin; net::plugin::kUcclPluginVariable is another.
inline constexpr const char* kPluginVariable = "FERRY_NET_PLUGIN";

// What the checks have in common.
struct TcpxSetup {
  SystemView* system = nullptr;
  std::map<std::string, std::string> environment;
  bool chosen = false;                  // NCCL_GPUDIRECTTCPX_SOCKET_IFNAME names interfaces
  std::vector<std::string> interfaces;  // that the plugin takes, sorted as it does
  std::vector<std::string> gpus;        // PCI addresses: "0000:04:00.0"

  // An empty variable is none.
  std::optional<std::string> Variable(const std::string& name) const;
};
TcpxSetup TcpxSetupOf(SystemView* system);

// All of it where the user asked for it or there is a plugin, and one harmless check elsewhere.
// `others`: what has been found before, for what is not looked at twice.
std::vector<Check> CheckTcpx(SystemView* system, bool asked, const std::vector<Check>& others,
                             Deadline deadline);

// The parts of CheckTcpx, which it calls in this order.
Check CheckTcpxPlugin(const TcpxSetup& setup);
Check CheckTcpxKernel(const TcpxSetup& setup);
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
Check CheckTcpxLimits(const TcpxSetup& setup, const std::vector<Check>& others);

// ---- what they share ----------------------------------------------------------------------------

// Interfaces that a list of NCCL's takes: prefixes, "=" before the list: whole names, "^": all but
// these. In the order of the names.
std::vector<std::string> TcpxMatches(const std::string& list,
                                     const std::vector<std::string>& interfaces);
// The list's entries, without "^" and "=".
std::vector<std::string> TcpxEntries(const std::string& list);
// Bytes; nothing where it is not set, or no number above 0.
std::optional<std::uint64_t> TcpxChunkSize(const TcpxSetup& setup);
// Makes the check as grave as this at least, and adds to its evidence.
void AddTcpxFinding(Verdict verdict, const std::string& text, Check* check);
// Adds a command to those that the check has.
void AddTcpxMend(const std::string& command, Check* check);

}  // namespace ferry::tools
