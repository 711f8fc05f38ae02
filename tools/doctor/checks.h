// The checks of `ferry doctor` and the context that they share.
#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/deadline.h"
#include "ferry/net/address.h"
#include "tools/doctor/check.h"
#include "tools/doctor/system.h"

namespace ferry::tools {

// TCP ports of which a listener of the peer may have any; both ends included.
struct PortRange {
  std::string id;  // of the check
  std::uint16_t first = 0;
  std::uint16_t last = 0;
};

// The context of a run: what to check, and the facts that earlier checks found for later ones.
struct Context {
  SystemView* system = nullptr;
  Config config;
  std::optional<net::Address> peer;  // as it was given: with a port
  bool tcpx = false;                 // check GPUDirect-TCPX even without a sign of it
  bool nccl = false;                 // check NCCL's requirements even without a sign of them
  bool nixl = false;                 // check NIXL's requirements even without a sign of them

  std::vector<net::Address> resolved;  // of the peer
  std::vector<PortRange> ranges;       // to dial at the peer, besides port_range
  std::vector<std::string>
      interfaces;         // towards the peer, or those whose addresses are announced to peers
  bool loopback = false;  // the peer is on this machine
  bool reached = false;   // a process listens at the peer's port
  double rtt_us = 0;      // to the peer; 0: unknown
};

// Every check, in the order of the report; a few seconds.
std::vector<Check> Examine(Context context);

// The parts of Examine, which it calls in this order.
Check CheckSettings(SystemView* system, const std::optional<Error>& wrong);
Check CheckSecret(const Context& context);
std::vector<Check> CheckRoute(Context* context, Deadline deadline);
std::vector<Check> CheckReach(Context* context, Deadline deadline);
Check CheckPeer(const Context& context, Deadline deadline);

Check CheckCongestionControl(const Context& context);
Check CheckSocketBuffers(const Context& context);
Check CheckTcpOptions(const Context& context);
Check CheckSlowStart(const Context& context);
Check CheckVmsplice(const Context& context);

Check CheckCores(const Context& context);
Check CheckNuma(const Context& context);
Check CheckLinks(const Context& context);
Check CheckMemory(const Context& context);
Check CheckSwap(const Context& context);
Check CheckHugePages(const Context& context);
Check CheckLockedMemory(const Context& context);
Check CheckOpenFiles(const Context& context);
Check CheckClock(const Context& context);

// Mbit/s. Interfaces without a speed say 4294967295.
inline constexpr std::uint64_t kNoSpeed = 10'000'000;

inline constexpr const char* kMakeSecret =
    "(umask 077; openssl rand -hex 32 > ~/.ferry_secret); export "
    "FERRY_SECRET_FILE=~/.ferry_secret  # and the same file on the peer";

// ---- what they share ----------------------------------------------------------------------------

// Parses the whole text as a number; surrounding blanks are ignored.
std::optional<std::uint64_t> NumberIn(std::string_view text);
std::vector<std::string> WordsOf(std::string_view text);
// Reads the number in a file. Errors: those of ReadFile; kCorrupt if the file holds no number.
Result<std::uint64_t> ReadNumber(SystemView* system, const std::string& path);
// The path below /proc/sys of a sysctl(8) name.
std::string SysctlPath(std::string_view name);
Check Skipped(std::string id, const Error& error);
template <class... Args>
Check Skipped(std::string id, fmt::format_string<Args...> format, Args&&... args) {
  return {std::move(id), Verdict::kSkipped, fmt::format(format, std::forward<Args>(args)...), ""};
}
// Ports of this machine's listening TCP sockets.
std::set<int> PortsInUse(SystemView* system);
// Parses a list such as "0-3,8" to sorted numbers; empty if it is malformed.
std::vector<int> CoreList(std::string_view text);

}  // namespace ferry::tools
