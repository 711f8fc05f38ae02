// A fake machine for tests of `ferry doctor`.
#pragma once
#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ferry/core/fd.h"
#include "tools/doctor/checks.h"

namespace ferry::tools {

// A deadline for checks of a fake machine, which end at once.
inline Deadline Soon() { return Deadline::After(std::chrono::seconds(10)); }

// A machine defined by a test; as constructed it has no problem.
class FakeSystem final : public SystemView {
 public:
  FakeSystem() {
    for (const auto& [name, value] :
         {std::pair{"net.ipv4.tcp_congestion_control", "cubic"},
          std::pair{"net.ipv4.tcp_allowed_congestion_control", "reno cubic"},
          std::pair{"net.ipv4.tcp_available_congestion_control", "reno cubic"},
          std::pair{"net.ipv4.tcp_rmem", "4096\t131072\t67108864"},
          std::pair{"net.ipv4.tcp_wmem", "4096\t65536\t67108864"},
          std::pair{"net.core.rmem_max", "212992"}, std::pair{"net.core.wmem_max", "212992"},
          std::pair{"net.ipv4.tcp_window_scaling", "1"}, std::pair{"net.ipv4.tcp_sack", "1"},
          std::pair{"net.ipv4.tcp_timestamps", "1"},
          std::pair{"net.ipv4.tcp_slow_start_after_idle", "0"},
          std::pair{"fs.pipe-max-size", "1048576"}, std::pair{"vm.nr_hugepages", "0"}}) {
      files[SysctlPath(name)] = value;
    }
    files["/sys/kernel/mm/transparent_hugepage/enabled"] = "always [madvise] never";
    files["/sys/devices/system/cpu/online"] = "0-7";
    files["/sys/devices/system/node/online"] = "0";
    files["/proc/self/cgroup"] = "0::/";
    files["/proc/meminfo"] =
        "MemTotal:       65536000 kB\nMemFree:        1000 kB\nMemAvailable:   50000000 kB\n"
        "SwapTotal:      0 kB\nSwapFree:       0 kB";
    files["/sys/class/net/eth0/operstate"] = "up";
    files["/sys/class/net/eth0/mtu"] = "9000";
    files["/sys/class/net/eth0/speed"] = "100000";
    files["/sys/class/net/eth0/duplex"] = "full";
    usable = {"cubic", "reno"};
    for (int core = 0; core < 8; ++core) cores.push_back(core);
  }

  Result<std::string> ReadFile(const std::string& path) override {
    const auto found = files.find(path);
    if (found == files.end()) return ErrnoError(path, ENOENT);
    return found->second;
  }
  Result<PathState> StateOf(const std::string& path) override {
    const auto found = states.find(path);
    if (found == states.end()) return ErrnoError(path, ENOENT);
    return found->second;
  }
  // Names of all files, states and links that the test has put below the folder.
  Result<std::vector<std::string>> List(const std::string& folder) override {
    std::set<std::string> names;
    const auto add = [&](const std::string& path) {
      if (!path.starts_with(folder + "/")) return;
      const std::string below = path.substr(folder.size() + 1);
      names.insert(below.substr(0, below.find('/')));
    };
    for (const auto& [path, text] : files) add(path);
    for (const auto& [path, state] : states) add(path);
    for (const auto& [path, target] : links) add(path);
    if (names.empty()) return ErrnoError(folder, ENOENT);
    return std::vector<std::string>(names.begin(), names.end());
  }
  Result<std::string> RealPath(const std::string& path) override {
    const auto found = links.find(path);
    if (found == links.end()) return ErrnoError(path, ENOENT);
    return found->second;
  }
  std::map<std::string, std::string> Environment() override { return environment; }
  Result<CommandEnd> Run(const std::vector<std::string>& arguments, Deadline /*end*/) override {
    const auto found = commands.find(arguments.front());
    if (found != commands.end()) return found->second;
    return Error(Code::kUnsupported, "the program " + arguments.front() + " is not installed");
  }
  Result<std::vector<net::Address>> Resolve(const net::Address& /*address*/,
                                            Deadline /*end*/) override {
    return resolved;
  }
  Result<Route> RouteTo(const net::Address& numeric) override {
    const auto found = routes.find(numeric.host);
    if (found == routes.end()) return Error(Code::kPeerLost, "Network is unreachable");
    return found->second;
  }
  std::vector<Dialed> Dial(const std::vector<net::Address>& numeric, Deadline /*end*/) override {
    std::vector<Dialed> outcomes;
    for (const net::Address& address : numeric) {
      const auto found = dialed.find(address.ToString());
      Dialed outcome = found == dialed.end() ? Dialed{.at = {}, .error = ETIMEDOUT} : found->second;
      outcome.at = address;
      outcomes.push_back(outcome);
    }
    return outcomes;
  }
  std::vector<net::InterfaceAddress> Addresses() override { return addresses; }
  bool MayUse(const std::string& congestion_control) override {
    return std::find(usable.begin(), usable.end(), congestion_control) != usable.end();
  }
  Result<bool> TakesTokens(int option) override {
    if (token_error != 0) return ErrnoError("a TCP socket", token_error);
    return token_options.count(option) != 0;
  }
  Result<NicSwitches> SwitchesOf(const std::string& interface) override {
    const auto found = switches.find(interface);
    if (found == switches.end()) return ErrnoError(interface, ENODEV);
    return found->second;
  }
  Limit LimitOf(int resource) override {
    const auto found = limits.find(resource);
    return found == limits.end() ? Limit{kUnlimited, kUnlimited} : found->second;
  }
  std::vector<int> Cores() override { return cores; }
  Result<ClockState> Clock() override { return clock; }
  Status ProbeVmsplice() override { return vmsplice; }
  Result<transfer::ConnectionInfo> TryConnect(const Config& /*config*/,
                                              const std::vector<net::Address>& /*numeric*/,
                                              Deadline /*end*/) override {
    return met;
  }

  void Sysctl(const std::string& name, const std::string& value) {
    files[SysctlPath(name)] = value;
  }
  void Answer(const std::string& program, Result<CommandEnd> end) {
    commands.insert_or_assign(program, std::move(end));
  }

  std::map<std::string, std::string> files;
  std::map<std::string, PathState> states;
  std::map<std::string, std::string> links;  // by path, where it leads
  std::map<std::string, std::string> environment;
  std::map<std::string, Result<CommandEnd>> commands;  // by the program's name
  Result<std::vector<net::Address>> resolved = std::vector<net::Address>{{"10.0.0.2", 7471}};
  std::map<std::string, Route> routes{
      {"10.0.0.2", Route{.interface = "eth0", .source = "10.0.0.1", .gateway = "", .mtu = 9000}}};
  std::map<std::string, Dialed> dialed{
      {"10.0.0.2:7471", Dialed{.at = {}, .path_mtu = 9000, .peer_segment = 8948, .rtt_us = 100}}};
  std::vector<net::InterfaceAddress> addresses{{"eth0", "10.0.0.1"}};
  std::vector<std::string> usable;  // congestion controls
  std::set<int> token_options;
  int token_error = 0;
  std::map<std::string, NicSwitches> switches;  // by interface
  std::map<int, Limit> limits;
  std::vector<int> cores;
  Result<ClockState> clock = ClockState{true, 1500};
  Status vmsplice = Ok();
  Result<transfer::ConnectionInfo> met = transfer::ConnectionInfo{};
};

// A run with the peer 10.0.0.2.
inline Context RunTo(FakeSystem* system) {
  Context context;
  context.system = system;
  context.peer = net::Address{"node7", 7471};
  context.resolved = {{"10.0.0.2", 7471}};
  context.interfaces = {"eth0"};
  return context;
}

// A run without a peer, which only reads the machine.
inline Context RunAlone(FakeSystem* system) {
  Context context;
  context.system = system;
  context.interfaces = {"eth0"};
  return context;
}

}  // namespace ferry::tools
