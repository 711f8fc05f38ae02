// Judges whether this machine is set up for GPUDirect-TCPX.
#pragma once
#include <string>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/net/machine/machine_view.h"

namespace ferry::tcpx {

// Kernels to which an application returns fragments: the one that the plugin is for, and Linux
// since 6.12.
inline constexpr int kTcpxTokenOption = 97;
inline constexpr int kUpstreamTokenOption = 80;
// The folder of the daemon's sockets, and the plugin's default for it.
inline constexpr const char* kTcpxPrefixVariable = "NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX";
inline constexpr const char* kTcpxUsualPrefix = "/tmp";
inline constexpr const char* kTcpxRuleSocket = "rx_rule_manager";
inline constexpr const char* kTcpxGpuSocket = "get_gpu_fd_";  // and the GPU's PCI address
inline constexpr const char* kTcpxInterfacesVariable = "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME";
inline constexpr const char* kTcpxChunkVariable = "NCCL_DYNAMIC_CHUNK_SIZE";
inline constexpr const char* kTcpxSplitFlag = "enable-header-split";

struct TcpxJudgement {
  bool whole = false;
  std::string plugin;  // its file
  std::string reason;  // what is missing, or what was found
};
// Stricter than the plugin, because the plugin ends the process where something is missing: its
// file can be loaded, the kernel is Google's, the daemon serves a GPU, interfaces are named that
// split headers and filter flows, and a chunk size is set. Of `ferry doctor --tcpx` it leaves out
// what costs speed only. Does not load the plugin.
TcpxJudgement JudgeTcpx(net::MachineView* machine, const Config& config);

// The interfaces that a list in NCCL's syntax selects: entries are prefixes; a leading "=" means
// whole names, "^" all except these. Sorted by name.
std::vector<std::string> TcpxMatches(const std::string& list,
                                     const std::vector<std::string>& interfaces);
// The list's entries, without "^" and "=".
std::vector<std::string> TcpxEntries(const std::string& list);
// Whether an entry selects an interface.
bool TakesInterface(const std::string& entry, bool exact, const std::string& name);

}  // namespace ferry::tcpx
