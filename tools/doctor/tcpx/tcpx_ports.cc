// GPUDirect-TCPX: the ports on which its plugin listens.
#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "tools/doctor/checks.h"
#include "tools/doctor/tcpx/tcpx.h"

namespace ferry::tools {
namespace {

constexpr const char* kBeginVariable = "NCCL_GPUDIRECTTCPX_PORT_BEGIN";
constexpr const char* kEndVariable = "NCCL_GPUDIRECTTCPX_PORT_END";
// The range that the instructions of UCCL's TCPX library open in firewalls.
constexpr std::uint64_t kUsualFirst = 50000;
constexpr std::uint64_t kUsualLast = 60000;
constexpr std::uint64_t kMaxPort = 65535;
// A process with 8 GPUs, 8 channels each, listens with a data and a control socket for each.
constexpr std::uint64_t kFewFree = 128;
constexpr const char* kEphemeral = "net.ipv4.ip_local_port_range";

struct TcpxPorts {
  std::uint64_t first = kUsualFirst;
  std::uint64_t last = kUsualLast;  // inclusive
};

// The variables where they are usable; otherwise the usual range, with a finding.
TcpxPorts PortsOf(const TcpxSetup& setup, Check* check) {
  const auto begin = setup.Variable(kBeginVariable);
  const auto end = setup.Variable(kEndVariable);
  if (!begin && !end) return {};
  const std::uint64_t first = (begin ? NumberIn(*begin) : std::nullopt).value_or(0);
  const std::uint64_t last = (end ? NumberIn(*end) : std::nullopt).value_or(0);
  if (first > 0 && first <= last && last <= kMaxPort) return {first, last};
  check->Find(Verdict::kWarning, "{}={} and {}={} are no range of ports", kBeginVariable,
              begin.value_or(""), kEndVariable, end.value_or(""));
  check->Fix("export {}={} {}={}", kBeginVariable, kUsualFirst, kEndVariable, kUsualLast);
  return {};
}

// Version 3.1.9 of the plugin lets the kernel choose its ports; others read the two variables.
void AddEphemeralPorts(const TcpxSetup& setup, const TcpxPorts& ports, Check* check) {
  const auto text = setup.system->ReadFile(SysctlPath(kEphemeral));
  if (!text) return check->Find(Verdict::kSkipped, "{}", text.error().message());
  const auto words = WordsOf(*text);
  const auto first = words.size() == 2 ? NumberIn(words[0]) : std::nullopt;
  const auto last = words.size() == 2 ? NumberIn(words[1]) : std::nullopt;
  if (!first || !last) {
    return check->Find(Verdict::kSkipped, "{} is \"{}\"", kEphemeral, *text);
  }
  const bool within = *first >= ports.first && *last <= ports.last;
  check->Find(within ? Verdict::kOk : Verdict::kNote, "the kernel chooses ports of {}-{}{}", *first,
              *last, within ? "" : ", of which a firewall for the range blocks some");
  if (!within) {
    check->Fix("sysctl -w {}='{} {}'", kEphemeral, ports.first, ports.last);
  }
}

void AddFreePorts(const TcpxSetup& setup, const TcpxPorts& ports, Check* check) {
  const std::set<int> used = PortsInUse(setup.system);
  const auto taken =
      static_cast<std::uint64_t>(std::distance(used.lower_bound(static_cast<int>(ports.first)),
                                               used.upper_bound(static_cast<int>(ports.last))));
  const std::uint64_t count = ports.last - ports.first + 1;
  const bool few = count - taken < kFewFree;
  check->Find(few ? Verdict::kWarning : Verdict::kOk, "{} of {} ports are in use", taken, count);
  if (few) check->Fix("ss -ltnp  # shows who listens; widen the range, or end those");
}

}  // namespace

std::optional<PortRange> TcpxPortRange(SystemView* system, bool asked) {
  const TcpxSetup setup = TcpxSetupOf(system);
  if (!asked && !HintsAtTcpx(setup)) return std::nullopt;
  Check ignored;
  const TcpxPorts ports = PortsOf(setup, &ignored);
  return PortRange{"tcpx_range", static_cast<std::uint16_t>(ports.first),
                   static_cast<std::uint16_t>(ports.last)};
}

Check CheckTcpxPorts(const TcpxSetup& setup) {
  Check check{"tcpx_ports", Verdict::kOk, "", ""};
  const TcpxPorts ports = PortsOf(setup, &check);
  check.Find(Verdict::kOk, "{}-{}", ports.first, ports.last);
  AddEphemeralPorts(setup, ports, &check);
  AddFreePorts(setup, ports, &check);
  return check;
}

}  // namespace ferry::tools
