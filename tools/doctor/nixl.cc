// NIXL with libplugin_FERRY.so: the wheel, the plug-in's file and folder, ports and settings.
#include "tools/doctor/nixl.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "tools/doctor/checks.h"
#include "tools/doctor/tcpx/plugin_file.h"

namespace ferry::tools {
namespace {

constexpr const char* kFolderVariable = "NIXL_PLUGIN_DIR";
constexpr const char* kFile = "libplugin_FERRY.so";
constexpr const char* kUcxFile = "libplugin_UCX.so";
// As in plugins/nixl/abi.h: the versions whose interface the plug-in knows.
constexpr std::uint64_t kMajor = 1;
constexpr std::uint64_t kNewestMinor = 5;
constexpr std::size_t kUsualAgents = 8;  // on a machine with as many GPUs
constexpr std::size_t kMaxNames = 3;     // in a sentence

std::vector<std::string> NamesIn(const PluginSetup& setup, const std::string& folder) {
  const auto names = setup.system->List(folder);
  return names ? *names : std::vector<std::string>();
}

// ---- folders ------------------------------------------------------------------------------------

std::vector<std::string> PythonPrefixes(const PluginSetup& setup) {
  std::vector<std::string> prefixes;
  const auto add = [&](const std::string& prefix) {
    if (std::find(prefixes.begin(), prefixes.end(), prefix) == prefixes.end()) {
      prefixes.push_back(prefix);
    }
  };
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (const auto prefix = setup.Variable(variable)) add(*prefix);
  }
  for (const std::string& folder : SplitAt(setup.Variable("PATH").value_or(std::string()), ':')) {
    if (setup.system->StateOf(folder + "/python3")) add(FolderOf(folder));
  }
  if (const auto home = setup.Variable("HOME")) add(*home + "/.local");
  return prefixes;
}

std::vector<NixlWheel> WheelsIn(const PluginSetup& setup, const std::string& site) {
  constexpr std::string_view kSuffix = ".dist-info";
  std::vector<NixlWheel> wheels;
  for (const std::string& name : NamesIn(setup, site)) {
    const std::size_t dash = name.find('-');
    if (!name.starts_with("nixl_cu") || !name.ends_with(kSuffix)) continue;
    if (dash == std::string::npos) continue;
    wheels.push_back({.package = name.substr(0, dash),
                      .version = name.substr(dash + 1, name.size() - kSuffix.size() - dash - 1),
                      .site = site});
  }
  return wheels;
}

// Set to nothing, the variable keeps NIXL from its default as well.
bool IsFolderEmpty(const PluginSetup& setup) {
  return setup.environment.contains(kFolderVariable) && !setup.Variable(kFolderVariable);
}

// The one folder in which NIXL searches; empty where neither the variable nor a wheel tells.
std::string PluginFolder(const PluginSetup& setup) {
  if (const auto folder = setup.Variable(kFolderVariable)) return *folder;
  if (IsFolderEmpty(setup)) return {};
  const auto wheels = FindNixlWheels(setup);
  return wheels.empty() ? std::string() : wheels.front().Plugins();
}

// Where a build, an installation or the Python package has the plug-in.
std::optional<std::string> FindElsewhere(const PluginSetup& setup) {
  std::vector<std::string> folders;
  if (const auto program = setup.system->RealPath("/proc/self/exe")) {
    const std::string folder = FolderOf(*program);
    folders.push_back(folder + "/nixl");
    for (const char* libraries :
         {"lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"}) {
      folders.push_back(fmt::format("{}/{}/nixl", FolderOf(folder), libraries));
    }
  }
  for (const NixlWheel& wheel : FindNixlWheels(setup)) {
    folders.push_back(wheel.site + "/tensorferry/nixl_plugin");
  }
  for (const std::string& folder : folders) {
    std::string path = fmt::format("{}/{}", folder, kFile);
    if (setup.system->StateOf(path)) return path;
  }
  return std::nullopt;
}

std::string MakeFolder(const std::string& plugin) {
  return fmt::format("export {}=$(python -m tensorferry.nixl --plugin {})", kFolderVariable,
                     ShellWord(plugin));
}

// By any of its links it is the same file, and so is a copy.
bool AreTheSame(const PluginSetup& setup, const std::string& one, const std::string& other) {
  const auto real = setup.system->RealPath(one);
  const auto other_real = setup.system->RealPath(other);
  if (real && other_real && *real == *other_real) return true;
  const auto content = setup.system->ReadFile(one);
  const auto other_content = setup.system->ReadFile(other);
  return content && other_content && !content->empty() && *content == *other_content;
}

// ---- ports --------------------------------------------------------------------------------------

// The kernel gives ports of this range to outgoing connections, unless they are reserved.
void AddEphemeral(const PluginSetup& setup, Check* check) {
  const auto range = setup.system->ReadFile(SysctlPath("net.ipv4.ip_local_port_range"));
  const auto words = WordsOf(range ? *range : std::string());
  if (words.size() != 2) return;
  const auto first = NumberIn(words[0]);
  const auto last = NumberIn(words[1]);
  if (!first || !last || setup.config.port_last < *first || setup.config.port_first > *last) return;
  const std::string ports = fmt::format("{}-{}", setup.config.port_first, setup.config.port_last);
  const auto reserved = setup.system->ReadFile(SysctlPath("net.ipv4.ip_local_reserved_ports"));
  const auto entries = SplitAt(reserved ? *reserved : std::string(), ',');
  if (std::find(entries.begin(), entries.end(), ports) != entries.end()) return;
  check->Find(Verdict::kNote, "outgoing connections take ports of {}-{}, too", *first, *last);
  if (check->fix.empty()) {
    check->fix = fmt::format("sysctl -w net.ipv4.ip_local_reserved_ports={}", ports);
  }
}

}  // namespace

std::vector<NixlWheel> FindNixlWheels(const PluginSetup& setup) {
  for (const std::string& prefix : PythonPrefixes(setup)) {
    std::vector<NixlWheel> found;
    for (const std::string& python : NamesIn(setup, prefix + "/lib")) {
      if (!python.starts_with("python")) continue;
      for (const char* packages : {"site-packages", "dist-packages"}) {
        const std::string site = fmt::format("{}/lib/{}/{}", prefix, python, packages);
        for (NixlWheel& wheel : WheelsIn(setup, site)) found.push_back(std::move(wheel));
      }
    }
    if (!found.empty()) return found;
  }
  return {};
}

std::vector<Check> CheckNixl(SystemView* system, const Config& config, bool asked,
                             Deadline deadline) {
  const PluginSetup setup{system, config, system->Environment(), deadline};
  if (!asked && !setup.environment.contains(kFolderVariable)) {
    return {{"nixl", Verdict::kSkipped,
             fmt::format("{} is not set; --nixl looks nevertheless", kFolderVariable), ""}};
  }
  std::vector<Check> checks;
  for (const auto check : {CheckNixlWheel, CheckNixlPlugin, CheckNixlFolder, CheckNixlDropIn,
                           CheckNixlPorts, CheckNixlSettings}) {
    checks.push_back(check(setup));
  }
  return checks;
}

Check CheckNixlWheel(const PluginSetup& setup) {
  Check check{"nixl_wheel", Verdict::kOk, "", ""};
  const auto wheels = FindNixlWheels(setup);
  if (wheels.empty()) {
    return Skipped(check.id,
                   "no nixl_cu12 or nixl_cu13 in VIRTUAL_ENV, CONDA_PREFIX, beside a python3 "
                   "of PATH or in ~/.local; a program may bring its own NIXL");
  }
  for (const NixlWheel& wheel : wheels) {
    const std::string name = fmt::format("{} {} in {}", wheel.package, wheel.version, wheel.site);
    const auto version = MajorMinorOf(wheel.version);
    if (!version) {
      check.Find(Verdict::kNote, "{}, an unknown version", name);
    } else if (version->first != kMajor) {
      check.Find(Verdict::kProblem,
                 "{}: the plug-in refuses to work with it, it works with {}.x only", name, kMajor);
      check.fix = fmt::format("pip install 'nixl>={},<{}'", kMajor, kMajor + 1);
    } else if (version->second > kNewestMinor) {
      check.Find(Verdict::kWarning,
                 "{}: newer than the versions that the plug-in knows, {}.0 to {}.{}", name, kMajor,
                 kMajor, kNewestMinor);
    } else {
      check.Find(Verdict::kOk, "{}", name);
    }
  }
  return check;
}

Check CheckNixlPlugin(const PluginSetup& setup) {
  Check check{"nixl_plugin", Verdict::kOk, "", ""};
  const std::string folder = PluginFolder(setup);
  const std::string path = fmt::format("{}/{}", folder, kFile);
  if (!folder.empty() && setup.system->StateOf(path)) {
    const auto real = setup.system->RealPath(path);
    check.evidence = real && *real != path ? fmt::format("{}, a link to {}", path, *real) : path;
    AddLoading(setup, path, &check);
    return check;
  }
  check.Find(
      Verdict::kProblem, "{}",
      folder.empty()
          ? fmt::format("{} is {}", kFolderVariable,
                        IsFolderEmpty(setup)
                            ? "empty"
                            : "not set, and there is no wheel with a folder of plug-ins")
          : fmt::format("no {} in {}{}: agents have no back end FERRY", kFile, folder,
                        setup.Variable(kFolderVariable) ? fmt::format(" ({})", kFolderVariable)
                                                        : ", where NIXL searches by default"));
  const auto elsewhere = FindElsewhere(setup);
  if (elsewhere) check.Find(Verdict::kProblem, "there is {}", *elsewhere);
  check.fix = MakeFolder(elsewhere.value_or(fmt::format("/path/to/{}", kFile)));
  return check;
}

Check CheckNixlFolder(const PluginSetup& setup) {
  Check check{"nixl_plugin_dir", Verdict::kOk, "", ""};
  const auto folder = setup.Variable(kFolderVariable);
  if (IsFolderEmpty(setup)) {
    return {
        check.id, Verdict::kProblem,
        fmt::format("{} is set, but empty: NIXL finds no plug-in at all; the command that should "
                    "have set it may have failed",
                    kFolderVariable),
        fmt::format("unset {}", kFolderVariable)};
  }
  if (!folder) {
    check.evidence =
        fmt::format("{} is not set: NIXL searches the wheel's folder", kFolderVariable);
    return check;
  }
  const auto names = setup.system->List(*folder);
  if (!names) {
    check = {check.id, Verdict::kProblem,
             fmt::format("{}: {}", kFolderVariable, names.error().message()), ""};
    return check;
  }
  const auto wheels = FindNixlWheels(setup);
  if (wheels.empty()) {
    return Skipped(check.id, "{}: there is no wheel to compare it with", *folder);
  }
  std::size_t count = 0;
  std::size_t missing = 0;
  std::string lacks;
  for (const std::string& name : NamesIn(setup, wheels.front().Plugins())) {
    if (!name.starts_with("lib") || !name.ends_with(".so")) continue;
    ++count;
    if (setup.system->StateOf(fmt::format("{}/{}", *folder, name))) continue;
    if (++missing <= kMaxNames) lacks += (lacks.empty() ? "" : ", ") + name;
  }
  check.evidence = fmt::format("{} has the wheel's {} plug-ins", *folder, count);
  if (missing == 0) return check;
  check.verdict = Verdict::kWarning;
  check.evidence = fmt::format(
      "{} lacks {} of the wheel's {} plug-ins ({}{}): NIXL searches this folder only, so agents "
      "cannot use them",
      *folder, missing, count, lacks, missing > kMaxNames ? ", ..." : "");
  check.fix = MakeFolder(FindElsewhere(setup).value_or(fmt::format("{}/{}", *folder, kFile)));
  return check;
}

Check CheckNixlDropIn(const PluginSetup& setup) {
  Check check{"nixl_drop_in", Verdict::kOk, "", ""};
  const std::string folder = PluginFolder(setup);
  const std::string ucx = fmt::format("{}/{}", folder, kUcxFile);
  const auto real = setup.system->RealPath(ucx);
  const bool ours = (real && real->ends_with(kFile)) ||
                    AreTheSame(setup, ucx, fmt::format("{}/{}", folder, kFile));
  if (folder.empty() || !ours) {
    check.evidence = "UCX is NIXL's own, or not there";
    return check;
  }
  check.verdict = Verdict::kWarning;
  check.evidence = fmt::format(
      "{} is {}: programs that ask NIXL for UCX get Ferry instead, and do not work with peers that "
      "have UCX",
      ucx, kFile);
  check.fix =
      fmt::format("export {}=$(python -m tensorferry.nixl)  # without --as-ucx", kFolderVariable);
  return check;
}

Check CheckNixlPorts(const PluginSetup& setup) {
  Check check{"nixl_ports", Verdict::kOk, "", ""};
  const int first = setup.config.port_first;
  const int last = setup.config.port_last;
  if (last == 0) {
    check.verdict = Verdict::kNote;
    check.evidence =
        "FERRY_PORT_RANGE is not set: agents listen on any free port, which firewalls must let "
        "pass";
    check.fix = "export FERRY_PORT_RANGE=20000-20999";
    return check;
  }
  const std::set<int> taken = PortsInUse(setup.system);
  const auto used =
      static_cast<std::size_t>(std::distance(taken.lower_bound(first), taken.upper_bound(last)));
  const std::size_t count = static_cast<std::size_t>(last - first) + 1;
  const std::size_t free = count - used;
  check.evidence =
      fmt::format("FERRY_PORT_RANGE={}-{}: {} of {} ports are free", first, last, free, count);
  if (free < kUsualAgents) {
    check.Find(free == 0 ? Verdict::kProblem : Verdict::kNote,
               "each agent of this machine needs one");
    check.fix = "export FERRY_PORT_RANGE=20000-20999";
  }
  AddEphemeral(setup, &check);
  return check;
}

Check CheckNixlSettings(const PluginSetup& setup) {
  Check check{"nixl_settings", Verdict::kOk, "", ""};
  for (const auto& [name, value] : setup.environment) {
    if (!name.starts_with("NIXL_") || value.empty()) continue;
    check.Find(Verdict::kOk, "{}={}", name, value);
  }
  if (check.evidence.empty()) check.evidence = "none of NIXL's variables is set";
  const Config& config = setup.config;
  if (!config.secret.empty() || !config.secret_file.empty() || config.tls != TlsMode::kOff) {
    return check;
  }
  check.Find(Verdict::kOk,
             "agents of other machines are let in without FERRY_SECRET_FILE, because they prove "
             "that they have the agent's metadata");
  return check;
}

}  // namespace ferry::tools
