// NCCL with libnccl-net-ferry.so: the plugin's file, NCCL's, its variables and limits.
#include "tools/doctor/nccl.h"

#include <fmt/core.h>
#include <strings.h>
#include <sys/resource.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "tools/doctor/checks.h"

namespace ferry::tools {
namespace {

constexpr const char* kPluginName = "ferry";
constexpr const char* kPluginFile = "libnccl-net-ferry.so";
constexpr const char* kTunerFile = "libnccl-tuner.so";
constexpr const char* kNcclFile = "libnccl.so.2";
constexpr std::uint64_t kUsualChannels = 8;  // of send and receive between two ranks
constexpr std::uint64_t kUsualLanes = 4;
constexpr std::uint64_t kWantedDescriptors = 4096;

bool IsWord(const std::string& text, const char* word) {
  return ::strcasecmp(text.c_str(), word) == 0;
}

// Parses the output of ldconfig(8): "     libm.so.6 (libc6,x86-64) => /lib/libm.so.6".
std::optional<std::string> InLoaderCache(const PluginSetup& setup, const std::string& name) {
  const auto cache = setup.system->Run({"ldconfig", "-p"}, setup.deadline);
  if (!cache) return std::nullopt;
  for (const std::string& line : SplitAt(cache->out, '\n')) {
    const auto words = WordsOf(line);
    const std::size_t arrow = line.find("=> ");
    if (!words.empty() && words.front() == name && arrow != std::string::npos) {
      return line.substr(arrow + 3);
    }
  }
  return std::nullopt;
}

// As the loader finds it, but for folders that NCCL's own library names.
std::optional<std::string> FindFile(const PluginSetup& setup, const std::string& name) {
  if (name.find('/') != std::string::npos) {
    return setup.system->StateOf(name) ? std::optional(name) : std::nullopt;
  }
  for (const std::string& folder :
       SplitAt(setup.Variable("LD_LIBRARY_PATH").value_or(std::string()), ':')) {
    const std::string path = fmt::format("{}/{}", folder, name);
    if (setup.system->StateOf(path)) return path;
  }
  return InLoaderCache(setup, name);
}

// By the names that NCCL tries for a plugin.
// A name alone, "ferry", stands for libnccl-net-ferry.so.
std::optional<std::string> FindPluginFile(const PluginSetup& setup, const std::string& name,
                                          const char* prefix) {
  if (auto found = FindFile(setup, name)) return found;
  if (name.find('/') != std::string::npos || name.ends_with(".so")) return std::nullopt;
  return FindFile(setup, fmt::format("{}-{}.so", prefix, name));
}

// The first that NCCL tries; later ones only where it cannot be used.
std::string PluginOf(const PluginSetup& setup) {
  const auto names = SplitAt(setup.Variable("NCCL_NET_PLUGIN").value_or("libnccl-net.so"), ',');
  return names.empty() ? std::string() : names.front();
}

std::optional<std::string> PathOfPlugin(const PluginSetup& setup) {
  return FindPluginFile(setup, PluginOf(setup), "libnccl-net");
}

// The newest that the beginning of the file names, where the names of its symbols' versions are.
// A library lists the versions of the symbols that it needs as texts, so no ELF parser is needed. A
// text that is there by chance could only make the answer too strict.
std::optional<MajorMinor> NeededGlibc(const std::string& file) {
  constexpr std::string_view kMark = "GLIBC_";
  std::optional<MajorMinor> newest;
  for (std::size_t at = file.find(kMark); at != std::string::npos;
       at = file.find(kMark, at + kMark.size())) {
    const auto version = MajorMinorOf(std::string_view(file).substr(at + kMark.size(), 12));
    if (version && (!newest || *version > *newest)) newest = version;
  }
  return newest;
}

std::string TextOf(const MajorMinor& version) {
  return fmt::format("{}.{}", version.first, version.second);
}

// As the plugin chooses, whose own setting precedes NCCL's.
void AddInterfaces(const PluginSetup& setup, Check* check) {
  const auto list = setup.Variable("NCCL_SOCKET_IFNAME");
  const auto family = setup.Variable("NCCL_SOCKET_FAMILY");
  if ((!list && !family) || !setup.config.interfaces.empty()) return;
  const net::AddressChoice choice =
      net::ChooseAddresses(setup.system->Addresses(), net::InterfacesOfNccl(list.value_or("")),
                           net::FamilyOfNccl(family ? family->c_str() : nullptr));
  std::string taken;
  for (const net::LocalAddress& local : choice.told) {
    const bool known = (" " + taken + " ").find(" " + local.interface + " ") != std::string::npos;
    if (!known) taken += (taken.empty() ? "" : " ") + local.interface;
  }
  if (!taken.empty()) return check->Find(Verdict::kOk, "which takes {}", taken);
  const std::string name = list ? "NCCL_SOCKET_IFNAME" : "NCCL_SOCKET_FAMILY";
  check->Find(Verdict::kProblem, "{}={} takes no interface that has an address", name,
              list ? *list : *family);
  check->fix = "unset " + name;
}

// NCCL's library in the wheel of a Python environment.
std::optional<std::string> FindWheel(const PluginSetup& setup) {
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const std::string folder = setup.Variable(variable).value_or(std::string()) + "/lib";
    const auto versions = setup.system->List(folder);
    for (const std::string& python : versions ? *versions : std::vector<std::string>{}) {
      std::string wheel =
          fmt::format("{}/{}/site-packages/nvidia/nccl/lib/{}", folder, python, kNcclFile);
      if (python.starts_with("python") && setup.system->StateOf(wheel)) return wheel;
    }
  }
  return std::nullopt;
}

// By the name of the file that a link leads to, or by the wheel's folder of facts:
// "nvidia_nccl_cu12-2.28.9.dist-info". Empty where neither tells.
std::string VersionOfNccl(const PluginSetup& setup, const std::string& path) {
  constexpr std::string_view kSuffix = ".so.";
  const auto real = setup.system->RealPath(path);
  const std::size_t suffix = real ? real->rfind(kSuffix) : std::string::npos;
  if (suffix != std::string::npos) {
    std::string version = real->substr(suffix + kSuffix.size());
    if (version.find('.') != std::string::npos) return version;
  }
  const std::size_t packages = path.find("/nvidia/nccl/");
  if (packages == std::string::npos) return {};
  const auto facts = setup.system->List(path.substr(0, packages));
  for (const std::string& name : facts ? *facts : std::vector<std::string>{}) {
    const std::size_t dash = name.find('-');
    const std::size_t end = name.find(".dist-info");
    if (!name.starts_with("nvidia_nccl_") || dash == std::string::npos) continue;
    if (end != std::string::npos) return name.substr(dash + 1, end - dash - 1);
  }
  return {};
}

}  // namespace

std::vector<Check> CheckNccl(SystemView* system, const Config& config, bool asked,
                             Deadline deadline) {
  const PluginSetup setup{system, config, system->Environment(), deadline};
  if (!asked && !setup.Variable("NCCL_NET_PLUGIN")) {
    return {
        {"nccl", Verdict::kSkipped, "NCCL_NET_PLUGIN is not set; --nccl looks nevertheless", ""}};
  }
  std::vector<Check> checks;
  for (const auto check : {CheckNcclPlugin, CheckNcclGlibc, CheckNcclLibrary, CheckNcclVariables,
                           CheckNcclTuner, CheckNcclFiles}) {
    checks.push_back(check(setup));
  }
  return checks;
}

// Looks at files only: loading the plugin would run its code in the doctor's process.
Check CheckNcclPlugin(const PluginSetup& setup) {
  Check check{"nccl_plugin", Verdict::kOk, "", ""};
  const std::string name = PluginOf(setup);
  const std::string use = fmt::format("export NCCL_NET_PLUGIN=/path/to/{}", kPluginFile);
  if (IsWord(name, "none")) {
    check = {check.id, Verdict::kProblem, "NCCL_NET_PLUGIN=none: NCCL loads no plugin", use};
    return check;
  }
  const auto path = PathOfPlugin(setup);
  if (!path) {
    check = {check.id, Verdict::kProblem,
             fmt::format("{} does not exist: NCCL falls back to its own sockets", name), use};
    return check;
  }
  check.evidence = *path;
  AddLoading(setup, *path, &check);
  if (check.verdict == Verdict::kOk && path->find(kPluginFile) == std::string::npos) {
    check.Find(Verdict::kNote, "which is another plugin than {}", kPluginFile);
    check.fix = use;
  }
  return check;
}

Check CheckNcclGlibc(const PluginSetup& setup) {
  Check check{"nccl_glibc", Verdict::kOk, "", ""};
  const auto path = PathOfPlugin(setup);
  if (!path) return Skipped(check.id, "no plugin was found");
  const auto file = setup.system->ReadFile(*path);
  if (!file) return Skipped(check.id, file.error());
  const auto needed = NeededGlibc(*file);
  const auto said = setup.system->Run({"getconf", "GNU_LIBC_VERSION"}, setup.deadline);
  if (!said) return Skipped(check.id, said.error());
  const auto words = WordsOf(said->out);  // "glibc 2.36"
  const auto present = words.size() == 2 ? MajorMinorOf(words.back()) : std::nullopt;
  if (!needed || !present) {
    return Skipped(check.id,
                   "{} and getconf(1) do not tell "
                   "versions of glibc",
                   *path);
  }
  check.evidence =
      fmt::format("{} needs {} or later, here is {}", *path, TextOf(*needed), TextOf(*present));
  // Versions compare as pairs of numbers: 2.9 is before 2.36.
  if (*present >= *needed) return check;
  check.verdict = Verdict::kProblem;
  check.evidence += ": it cannot be loaded";
  check.fix = "scripts/bundle  # on a machine with a glibc as old as here";
  return check;
}

Check CheckNcclLibrary(const PluginSetup& setup) {
  Check check{"nccl_library", Verdict::kOk, "", ""};
  auto path = FindFile(setup, kNcclFile);
  if (!path) path = FindWheel(setup);
  if (!path) {
    return Skipped(check.id,
                   "no {} in LD_LIBRARY_PATH, the loader's folders or "
                   "the Python environment; a program may bring its own",
                   kNcclFile);
  }
  check.evidence = *path;
  const std::string version = VersionOfNccl(setup, *path);
  if (!version.empty()) check.evidence += fmt::format(", version {}", version);
  return check;
}

Check CheckNcclVariables(const PluginSetup& setup) {
  Check check{"nccl_variables", Verdict::kOk, "", ""};
  for (const auto& [name, value] : setup.environment) {
    if (!name.starts_with("NCCL_") || value.empty()) continue;
    check.Find(Verdict::kOk, "{}={}", name, value);
  }
  if (check.evidence.empty()) check.evidence = "none of NCCL's is set";
  if (const auto net = setup.Variable("NCCL_NET"); net && !IsWord(*net, kPluginName)) {
    check.Find(Verdict::kProblem, "NCCL_NET={} is another network than Ferry", *net);
    check.fix = "unset NCCL_NET";
  }
  AddInterfaces(setup, &check);
  for (const char* bound : {"NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NRINGS",
                            "NCCL_MIN_NRINGS", "NCCL_MAX_CTAS", "NCCL_MIN_CTAS"}) {
    if (!setup.Variable(bound)) continue;
    check.Find(Verdict::kNote,
               "{} bounds NCCL's channels, so FERRY_NCCL_CHANNELS may not count; give "
               "all ranks the same",
               bound);
  }
  return check;
}

Check CheckNcclTuner(const PluginSetup& setup) {
  Check check{"nccl_tuner", Verdict::kOk, "the one in NCCL's network plugin", ""};
  const auto named = setup.Variable("NCCL_TUNER_PLUGIN");
  if (named && IsWord(*named, "none")) {
    check.verdict = Verdict::kNote;
    check.evidence = "none, by NCCL_TUNER_PLUGIN; give all ranks the same";
    return check;
  }
  const auto plugin = PathOfPlugin(setup);
  const auto found = FindPluginFile(setup, named.value_or(kTunerFile), "libnccl-tuner");
  if (!found) {
    if (!named) return check;
    check.verdict = Verdict::kWarning;
    check.evidence = fmt::format(
        "NCCL_TUNER_PLUGIN names {}, which was not found: FERRY_NCCL_CHANNELS is not asked for, "
        "and "
        "ranks that have it are refused",
        *named);
    if (plugin) check.fix = fmt::format("export NCCL_TUNER_PLUGIN={}", ShellWord(*plugin));
    return check;
  }
  const auto real = setup.system->RealPath(*found);
  // By any of its links it is the same file.
  const auto real_plugin = plugin ? setup.system->RealPath(*plugin) : real;
  if (plugin && real && real_plugin && *real == *real_plugin) return check;
  check.evidence = fmt::format("{}, in place of the plugin's own", *found);
  check.verdict = named ? Verdict::kNote : Verdict::kWarning;
  check.evidence += ": FERRY_NCCL_CHANNELS is not asked for";
  if (plugin) check.fix = fmt::format("export NCCL_TUNER_PLUGIN={}", ShellWord(*plugin));
  return check;
}

Check CheckNcclFiles(const PluginSetup& setup) {
  Check check{"nccl_files", Verdict::kOk, "", ""};
  const Limit limit = setup.system->LimitOf(RLIMIT_NOFILE);
  const std::uint64_t lanes =
      setup.config.lanes > 0 ? static_cast<std::uint64_t>(setup.config.lanes) : kUsualLanes;
  // Both ways, and one lane for small messages.
  const std::uint64_t of_peer = 2 * kUsualChannels * (1 + lanes);
  // The plugin raises the soft limit.
  const std::uint64_t usable = std::min<std::uint64_t>(limit.hard, 65536);
  check.evidence = fmt::format(
      "{} descriptors at most: two ranks that send to each other over {} "
      "channels have {} sockets, so there is room for about {} peers",
      usable, kUsualChannels, of_peer, usable / of_peer);
  if (usable >= kWantedDescriptors) return check;
  check.verdict = Verdict::kWarning;
  check.fix = "echo '* - nofile 65536' > /etc/security/limits.d/91-ferry.conf  # and log in again";
  return check;
}

}  // namespace ferry::tools
