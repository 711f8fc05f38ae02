// Looks at a machine for what GPUDirect-TCPX needs.
#include "ferry/tcpx/tcpx_judge.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <sstream>

#include "ferry/tcpx/factory.h"
#include "ferry/tcpx/host/plugin.h"
#include "ferry/tcpx/host/plugin_path.h"

namespace ferry::tcpx {
namespace {

// Each part returns what is missing; nothing where it is whole.
using Missing = std::optional<std::string>;
using Variables = std::map<std::string, std::string>;

std::string ValueOf(const Variables& variables, const char* name) {
  const auto found = variables.find(name);
  return found == variables.end() ? std::string() : found->second;
}

std::string PathOfPlugin(const Variables& variables, const Config& config) {
  if (!config.net_plugin.empty()) return config.net_plugin;
  const std::string by_uccl = ValueOf(variables, kUcclPluginVariable);
  return by_uccl.empty() ? kUsualPluginPath : by_uccl;
}

Missing MissingOfPlugin(net::MachineView* machine, const std::string& path) {
  const auto state = machine->StateOf(path);
  if (!state) return state.error().message();
  if (state->kind != net::PathState::Kind::kFile || !state->readable || state->noexec) {
    return fmt::format("{} cannot be loaded", path);
  }
  return std::nullopt;
}

Missing MissingOfKernel(net::MachineView* machine) {
  const auto tcpx = machine->TakesTokens(kTcpxTokenOption);
  const auto upstream = machine->TakesTokens(kUpstreamTokenOption);
  if (tcpx && upstream && *tcpx && !*upstream) return std::nullopt;
  return std::string("the kernel is not the one that the plugin is for");
}

Missing MissingOfDaemon(net::MachineView* machine, const Variables& variables) {
  std::string prefix = ValueOf(variables, kTcpxPrefixVariable);
  if (prefix.empty()) prefix = kTcpxUsualPrefix;
  const auto names = machine->List(prefix);
  bool has_rules = false;
  bool has_gpu = false;
  for (const std::string& name : names ? *names : std::vector<std::string>()) {
    const bool rules = name == kTcpxRuleSocket;
    if (!rules && name.rfind(kTcpxGpuSocket, 0) != 0) continue;
    const auto state = machine->StateOf(fmt::format("{}/{}", prefix, name));
    if (!state || state->kind != net::PathState::Kind::kSocket || !state->writable) {
      return fmt::format("{}/{} cannot be connected to", prefix, name);
    }
    (rules ? has_rules : has_gpu) = true;
  }
  if (has_rules && has_gpu) return std::nullopt;
  return fmt::format("the receive-datapath daemon has no {} in {}",
                     has_rules ? "GPU's socket" : kTcpxRuleSocket, prefix);
}

Missing MissingOfInterfaces(net::MachineView* machine, const Variables& variables) {
  const std::string list = ValueOf(variables, kTcpxInterfacesVariable);
  if (list.empty()) return fmt::format("{} is not set", kTcpxInterfacesVariable);
  const auto all = machine->List("/sys/class/net");
  const auto chosen = TcpxMatches(list, all ? *all : std::vector<std::string>());
  if (chosen.empty()) return fmt::format("there is no interface of {}", list);
  for (const std::string& interface : chosen) {
    const auto switches = machine->SwitchesOf(interface);
    if (!switches) return switches.error().message();
    const auto split = switches->private_flags.find(kTcpxSplitFlag);
    if (split == switches->private_flags.end() || !split->second) {
      return fmt::format("{} does not split headers", interface);
    }
    if (!switches->ntuple.value_or(false)) return fmt::format("{} filters no flows", interface);
  }
  return std::nullopt;
}

Missing MissingOfChunkSize(const Variables& variables) {
  const std::string text = ValueOf(variables, kTcpxChunkVariable);
  if (std::strtoull(text.c_str(), nullptr, 10) > 0) return std::nullopt;
  return fmt::format("{} is not set", kTcpxChunkVariable);
}

}  // namespace

AutoChoice ChooseForMachine(const Config& config) {
  if (config.tls != TlsMode::kOff) return {"tcp", "TLS does not cover the payloads of a plugin"};
  const TcpxJudgement tcpx = JudgeTcpx(net::CreateMachineView().get(), config);
  if (tcpx.whole) return {"plugin:" + tcpx.plugin, "GPUDirect-TCPX: " + tcpx.reason};
  return {"tcp", "no GPUDirect-TCPX: " + tcpx.reason};
}

TcpxJudgement JudgeTcpx(net::MachineView* machine, const Config& config) {
  const Variables variables = machine->Environment();
  TcpxJudgement judgement{true, PathOfPlugin(variables, config),
                          "plugin, kernel, daemon and interfaces are there"};
  for (const Missing& missing :
       {MissingOfPlugin(machine, judgement.plugin), MissingOfKernel(machine),
        MissingOfDaemon(machine, variables), MissingOfInterfaces(machine, variables),
        MissingOfChunkSize(variables)}) {
    if (!missing) continue;
    judgement.whole = false;
    judgement.reason = *missing;
    break;
  }
  return judgement;
}

// As NCCL_SOCKET_IFNAME: an entry is the beginning of a name unless the list begins with "=".
bool TakesInterface(const std::string& entry, bool exact, const std::string& name) {
  return exact ? name == entry : name.starts_with(entry);
}

// Without the marks at the front: "^" excludes, "=" compares whole names.
std::vector<std::string> TcpxEntries(const std::string& list) {
  std::istringstream stream(list.substr(std::min(list.find_first_not_of("^="), list.size())));
  std::vector<std::string> entries;
  for (std::string entry; std::getline(stream, entry, ',');) {
    if (!entry.empty()) entries.push_back(entry);
  }
  return entries;
}

std::vector<std::string> TcpxMatches(const std::string& list,
                                     const std::vector<std::string>& interfaces) {
  const bool excludes = list.starts_with("^");
  const bool exact = list.starts_with("=") || list.starts_with("^=");
  const auto entries = TcpxEntries(list);
  std::vector<std::string> matches;
  for (const std::string& name : interfaces) {
    const bool named = std::any_of(entries.begin(), entries.end(), [&](const std::string& entry) {
      return TakesInterface(entry, exact, name);
    });
    if (named != excludes) matches.push_back(name);
  }
  std::sort(matches.begin(), matches.end());
  return matches;
}

}  // namespace ferry::tcpx
