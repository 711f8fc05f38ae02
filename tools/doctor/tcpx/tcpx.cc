// GPUDirect-TCPX: its plugin, the kernel that it is for, and its receive-datapath daemon.
#include "tools/doctor/tcpx/tcpx.h"

#include <fmt/core.h>

#include <algorithm>

#include "ferry/tcpx/host/plugin.h"
#include "ferry/tcpx/host/plugin_path.h"
#include "tools/doctor/checks.h"
#include "tools/doctor/tcpx/plugin_file.h"

namespace ferry::tools {
namespace {

using tcpx::kTcpxTokenOption;
using tcpx::kUcclPluginVariable;
using tcpx::kUpstreamTokenOption;
using tcpx::kUsualPluginPath;

// Where Google's installer leaves it, by the name of its build target; often mounted noexec.
constexpr const char* kInstalledPlugin = "/var/lib/tcpx/lib64/libnccl-net.so";
constexpr const char* kPrefixVariable = tcpx::kTcpxPrefixVariable;
constexpr const char* kPluginsPrefix = tcpx::kTcpxUsualPrefix;
constexpr const char* kDaemonsFolder = "/run/tcpx";
constexpr const char* kGpuSocket = tcpx::kTcpxGpuSocket;
constexpr const char* kGpuFolder = "/proc/driver/nvidia/gpus";
constexpr const char* kDriverVersion = "/proc/driver/nvidia/version";
constexpr std::uint64_t kDmaBufDriver = 515;  // the first whose open kernel module exports dma-bufs

struct PluginPath {
  std::string path;
  std::string origin;  // the variable; empty: where it usually is
};

// This library's variable first, then the one of another user of the plugin.
PluginPath PathOfPlugin(const TcpxSetup& setup) {
  for (const char* variable : {kPluginVariable, kUcclPluginVariable}) {
    if (const auto path = setup.Variable(variable)) return {*path, variable};
  }
  return {kUsualPluginPath, ""};
}

void AddMissingPlugin(const TcpxSetup& setup, const PluginPath& plugin, const Error& error,
                      Check* check) {
  check->Find(Verdict::kProblem, "{}",
              plugin.origin.empty() ? error.message()
                                    : fmt::format("{}: {}", plugin.origin, error.message()));
  for (const char* other : {kUsualPluginPath, kInstalledPlugin}) {
    if (other == plugin.path || !setup.system->StateOf(other)) continue;
    check->Find(check->verdict, "there is {}", other);
    check->Fix("export {}={}", kPluginVariable, other);
    return;
  }
  check->Fix("export {}=/path/to/libnccl-net.so  # of GPUDirect-TCPX", kPluginVariable);
}

// ---- the daemon ---------------------------------------------------------------------------------

std::vector<std::string> NamesIn(const TcpxSetup& setup, const std::string& folder) {
  auto names = setup.system->List(folder);
  return names ? *std::move(names) : std::vector<std::string>{};
}

bool HasDaemon(const std::vector<std::string>& names) {
  return std::find(names.begin(), names.end(), tcpx::kTcpxRuleSocket) != names.end();
}

void AddNoDaemon(const TcpxSetup& setup, const std::string& prefix, Check* check) {
  for (const char* other : {kDaemonsFolder, kPluginsPrefix}) {
    if (prefix == other || !HasDaemon(NamesIn(setup, other))) continue;
    check->Find(Verdict::kProblem, "the daemon's sockets are in {}, and the plugin looks in {}",
                other, prefix);
    check->Fix("export {}={}", kPrefixVariable, other);
    return;
  }
  check->Find(Verdict::kProblem,
              "no rx_rule_manager in {}: the receive-datapath daemon does not run, "
              "or has its sockets elsewhere",
              prefix);
  const bool usual = prefix == kPluginsPrefix;
  check->Fix("ls {}{}/  # where the daemon's --uds_path is; {} must name it", ShellWord(prefix),
             usual ? fmt::format("/ {}", kDaemonsFolder) : "", kPrefixVariable);
}

// A socket that a client can connect to. Whether somebody listens is not tried: the daemon would
// have to answer.
void AddSocket(const TcpxSetup& setup, const std::string& path, Check* check) {
  const auto state = setup.system->StateOf(path);
  if (!state) {
    check->Find(Verdict::kProblem, "{}", state.error().message());
  } else if (state->kind != PathState::Kind::kSocket) {
    check->Find(Verdict::kProblem, "{} is not a socket", path);
  } else if (!state->writable) {
    check->Find(Verdict::kProblem, "{} may not be connected to", path);
    check->Fix("chmod a+w {}", ShellWord(path));
  }
}

std::vector<std::string> GpusOfDaemon(const std::vector<std::string>& names) {
  std::vector<std::string> gpus;
  const std::string prefix = kGpuSocket;
  for (const std::string& name : names) {
    if (name.starts_with(prefix)) gpus.push_back(name.substr(prefix.size()));
  }
  return gpus;
}

void AddGpuSockets(const TcpxSetup& setup, const std::string& prefix,
                   const std::vector<std::string>& served, Check* check) {
  if (served.empty()) {
    check->Find(Verdict::kProblem, "no {}* in {}: the daemon has no pool in any GPU", kGpuSocket,
                prefix);
    return;
  }
  check->Find(Verdict::kOk, "pools in {} GPUs", served.size());
  for (const std::string& gpu : setup.gpus) {
    // With or without the PCI domain.
    const bool has = std::any_of(served.begin(), served.end(),
                                 [&](const std::string& one) { return gpu.ends_with(one); });
    if (has) continue;
    check->Find(Verdict::kWarning, "none in GPU {}, which can receive nothing", gpu);
  }
}

}  // namespace

bool HintsAtTcpx(const TcpxSetup& setup) {
  const PluginPath plugin = PathOfPlugin(setup);
  return !plugin.origin.empty() || setup.system->StateOf(plugin.path);
}

TcpxSetup TcpxSetupOf(SystemView* system) {
  TcpxSetup setup{{system, Config(), system->Environment(), Deadline::Never()}};
  if (auto gpus = system->List(kGpuFolder)) setup.gpus = *std::move(gpus);
  std::vector<std::string> all;
  for (const std::string& name : NamesIn(setup, "/sys/class/net")) {
    if (name != "bonding_masters") all.push_back(name);  // the one file among the folders
  }
  const auto list = setup.Variable(tcpx::kTcpxInterfacesVariable);
  setup.chosen = list.has_value();
  if (list) {
    setup.interfaces = TcpxMatches(*list, all);
    return setup;
  }
  // As the plugin chooses by itself, among those with an address.
  std::vector<std::string> addressed;
  for (const net::LocalAddress& local : net::ChooseAddresses(system->Addresses(), "").told) {
    const bool known =
        std::find(addressed.begin(), addressed.end(), local.interface) != addressed.end();
    if (!known) addressed.push_back(local.interface);
  }
  for (const char* usual : {"ib", "^docker,lo", "docker", "lo"}) {
    setup.interfaces = TcpxMatches(usual, addressed);
    if (!setup.interfaces.empty()) break;
  }
  return setup;
}

// Only where there is a hint that TCPX is used, or where it was asked for: on other machines a
// dozen findings about it would hide the rest.
std::vector<Check> CheckTcpx(SystemView* system, bool asked, const std::vector<Check>& others,
                             Deadline deadline) {
  const TcpxSetup setup = TcpxSetupOf(system);
  if (!asked && !HintsAtTcpx(setup)) {
    return {{"tcpx", Verdict::kSkipped,
             fmt::format("no {}, and neither {} nor {} is set; --tcpx looks nevertheless",
                         kUsualPluginPath, kPluginVariable, kUcclPluginVariable),
             ""}};
  }
  std::vector<Check> checks;
  for (const auto check : {CheckTcpxPlugin, CheckTcpxKernel, CheckTcpxDriver, CheckTcpxDaemon,
                           CheckTcpxInterfaces, CheckTcpxControl}) {
    checks.push_back(check(setup));
  }
  checks.push_back(CheckTcpxHeaderSplit(setup, deadline));
  for (const auto check :
       {CheckTcpxSteering, CheckTcpxMtu, CheckTcpxDistance, CheckTcpxChunkSize, CheckTcpxSetupWait,
        CheckTcpxVariables, CheckTcpxSysctls, CheckTcpxPorts}) {
    checks.push_back(check(setup));
  }
  checks.push_back(CheckTcpxLimits(setup, others));
  return checks;
}

Check CheckTcpxPlugin(const TcpxSetup& setup) {
  Check check{"tcpx_plugin", Verdict::kOk, "", ""};
  const PluginPath plugin = PathOfPlugin(setup);
  if (plugin.path.find('/') == std::string::npos) {
    check.verdict = Verdict::kSkipped;
    check.evidence = fmt::format("{} is {}: the loader looks for it in its own folders",
                                 plugin.origin, plugin.path);
    check.fix = fmt::format("ldconfig -p | grep {}", ShellWord(plugin.path));
    return check;
  }
  const auto state = setup.system->StateOf(plugin.path);
  if (!state) {
    AddMissingPlugin(setup, plugin, state.error(), &check);
    return check;
  }
  check.evidence =
      plugin.origin.empty() ? plugin.path : fmt::format("{}, by {}", plugin.path, plugin.origin);
  const std::string word = ShellWord(plugin.path);
  if (state->kind != PathState::Kind::kFile) {
    check.Find(Verdict::kProblem, "not a file");
    check.Fix("ls -ld {}", word);
  } else if (!state->readable) {
    check.Find(Verdict::kProblem, "which may not be read");
    check.Fix("chmod a+r {}", word);
  } else if (state->noexec) {
    check.Find(Verdict::kProblem, "on a mount with noexec, from where nothing can be loaded");
    const std::string folder = ShellWord(FolderOf(plugin.path));
    check.Fix("mount --bind {0} {0} && mount -o remount,bind,exec {0}", folder);
  }
  return check;
}

Check CheckTcpxKernel(const TcpxSetup& setup) {
  Check check{"tcpx_kernel", Verdict::kOk, "", ""};
  // Asked of the kernel itself, by an empty call of the option: release numbers say nothing about
  // patches.
  const auto tcpx = setup.system->TakesTokens(kTcpxTokenOption);
  if (!tcpx) return Skipped(check.id, tcpx.error());
  const auto upstream = setup.system->TakesTokens(kUpstreamTokenOption);
  if (!upstream) return Skipped(check.id, upstream.error());
  if (*tcpx && !*upstream) {
    check.evidence =
        fmt::format("device memory by option {}, as the plugin has it", kTcpxTokenOption);
    return check;
  }
  if (*tcpx) {
    check.verdict = Verdict::kNote;
    check.evidence = fmt::format(
        "both options {} and {} are there: which kernel this is cannot be "
        "told by them",
        kTcpxTokenOption, kUpstreamTokenOption);
    return check;
  }
  check.verdict = Verdict::kProblem;
  check.evidence = *upstream
                       ? fmt::format(
                             "device memory by option {}, as Linux has it since 6.12, and the "
                             "plugin is for Google's older kernel, where it is {}: receives of "
                             "the plugin would end the process",
                             kUpstreamTokenOption, kTcpxTokenOption)
                       : fmt::format(
                             "no device memory for TCP: neither option {} (Google's kernel) nor "
                             "{} (Linux since 6.12) is there",
                             kTcpxTokenOption, kUpstreamTokenOption);
  check.fix = "uname -r  # boot a system image that is made for GPUDirect-TCPX";
  return check;
}

// The first line of the file: "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.183.01
// Release Build ...", without "Open" for the other module.
Check CheckTcpxDriver(const TcpxSetup& setup) {
  Check check{"tcpx_driver", Verdict::kOk, "", ""};
  const auto text = setup.system->ReadFile(kDriverVersion);
  if (!text) {
    check.Find(Verdict::kProblem, "NVIDIA's driver is not loaded: {}", text.error().message());
    check.fix = "nvidia-smi";
    return check;
  }
  const std::string line = text->substr(0, text->find('\n'));
  std::string version;
  for (const std::string& word : WordsOf(line)) {
    if (version.empty() && NumberIn(word.substr(0, word.find('.')))) version = word;
  }
  const auto major = NumberIn(version.substr(0, version.find('.')));
  if (!major) {
    check.Find(Verdict::kSkipped, "{} tells no version: {}", kDriverVersion, line);
    return check;
  }
  const bool is_open = line.find("Open Kernel Module") != std::string::npos;
  check.evidence = fmt::format("{}, {}open kernel module", version, is_open ? "" : "not the ");
  if (*major < kDmaBufDriver) {
    check.Find(Verdict::kProblem, "before {} no driver exports GPU memory as dma-buf",
               kDmaBufDriver);
  } else if (!is_open) {
    check.Find(Verdict::kWarning, "only the open one exports GPU memory as dma-buf");
  }
  if (check.verdict != Verdict::kOk) {
    check.fix = "modinfo nvidia  # install the open kernel module that the system image has for it";
  }
  return check;
}

Check CheckTcpxDaemon(const TcpxSetup& setup) {
  Check check{"tcpx_daemon", Verdict::kOk, "", ""};
  std::string prefix = setup.Variable(kPrefixVariable).value_or(kPluginsPrefix);
  // So that it can be compared with the usual folders.
  while (prefix.size() > 1 && prefix.back() == '/') prefix.pop_back();
  const auto names = NamesIn(setup, prefix);
  if (!HasDaemon(names)) {
    AddNoDaemon(setup, prefix, &check);
    return check;
  }
  check.evidence = fmt::format("sockets in {}", prefix);
  const auto served = GpusOfDaemon(names);
  for (const char* name : {"rx_rule_manager", "rx_rule_uninstall", "queue_ids_by_gpu"}) {
    AddSocket(setup, fmt::format("{}/{}", prefix, name), &check);
  }
  for (const std::string& gpu : served) {
    AddSocket(setup, fmt::format("{}/{}{}", prefix, kGpuSocket, gpu), &check);
  }
  AddGpuSockets(setup, prefix, served, &check);
  if (check.verdict > Verdict::kNote && check.fix.empty()) {
    check.fix =
        fmt::format("ls -l {}/  # then start the receive-datapath daemon again", ShellWord(prefix));
  }
  return check;
}

}  // namespace ferry::tools
