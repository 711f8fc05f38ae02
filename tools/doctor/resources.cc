// Doctor checks of the resources that this process may use.
#include <fmt/core.h>
#include <sys/resource.h>

#include <algorithm>
#include <limits>

#include "ferry/core/units.h"
#include "tools/doctor/checks.h"

namespace ferry::tools {
namespace {

constexpr std::uint64_t kMinLocked = 64 * kMiB;
constexpr std::uint64_t kMinMemory = kGiB;
constexpr std::uint64_t kMinFiles = 256;
constexpr std::uint64_t kWantedFiles = 4096;
constexpr std::uint64_t kFilesPerLane =
    3;  // a socket and the two ends of a pipe for zero-copy sends
constexpr std::uint64_t kSlowLink = 1000;  // Mbit/s
// cgroup v1 says "no limit" by the largest multiple of a page.
constexpr std::uint64_t kNoMemoryLimit = std::uint64_t{1} << 60;

std::string SizeText(std::uint64_t bytes) {
  if (bytes == kUnlimited) return "unlimited";
  if (bytes % kGiB == 0) return FormatSize(bytes);
  if (bytes >= 10 * kGiB) return fmt::format("{} GiB", bytes / kGiB);
  if (bytes >= 10 * kMiB) return fmt::format("{} MiB", bytes / kMiB);
  return FormatSize(bytes);
}

std::string CountText(std::uint64_t count) {
  return count == kUnlimited ? "unlimited" : std::to_string(count);
}

// ---- control groups (cgroups(7)) ----------------------------------------------------------------

struct GroupFile {
  std::string path;
  std::string text;
};

bool Lists(std::string_view controllers, std::string_view controller) {
  for (std::size_t at = 0; at <= controllers.size();) {
    const std::size_t comma = std::min(controllers.find(',', at), controllers.size());
    if (controllers.substr(at, comma - at) == controller) return true;
    at = comma + 1;
  }
  return false;
}

// This process's path in the hierarchy of a controller, or in that of version 2 for "".
// Lines of /proc/self/cgroup: number, controllers, path. Version 2 has one line, without
// controllers; machines with both versions have it besides those of version 1.
std::optional<std::string> GroupOf(std::string_view groups, std::string_view controller) {
  for (std::size_t at = 0; at < groups.size();) {
    const std::size_t end = std::min(groups.find('\n', at), groups.size());
    const std::string_view line = groups.substr(at, end - at);  // "4:cpu,cpuacct:/a/b"
    at = end + 1;
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) continue;
    if (Lists(line.substr(first + 1, second - first - 1), controller)) {
      return std::string(line.substr(second + 1));
    }
  }
  return std::nullopt;
}

// The file in this process's group and in each group around it: any of them may be the tightest.
std::vector<GroupFile> ReadUpwards(SystemView* system, const std::string& mount, std::string group,
                                   const std::string& file) {
  std::vector<GroupFile> found;
  for (;;) {
    while (!group.empty() && group.back() == '/') group.pop_back();
    const std::string path = fmt::format("{}{}/{}", mount, group, file);
    if (auto text = system->ReadFile(path)) found.push_back({path, *std::move(text)});
    if (group.empty()) return found;
    group.erase(group.find_last_of('/') == std::string::npos ? 0 : group.find_last_of('/'));
  }
}

// Version 2 first: where both are mounted, a controller belongs to one of them, and its files are
// there only.
std::vector<GroupFile> ReadGroups(SystemView* system, const std::string& controller,
                                  const std::string& file_v2, const std::string& file_v1) {
  const auto groups = system->ReadFile("/proc/self/cgroup");
  if (!groups) return {};
  std::vector<GroupFile> found;
  if (const auto group = GroupOf(*groups, "")) {
    found = ReadUpwards(system, "/sys/fs/cgroup", *group, file_v2);
  }
  const auto group = GroupOf(*groups, controller);
  if (!found.empty() || !group) return found;
  return ReadUpwards(system, "/sys/fs/cgroup/" + controller, *group, file_v1);
}

struct Quota {
  double cores = 0;
  std::string fix;
};

// "max 100000" or "150000 100000": microseconds of each period.
std::optional<double> CoresOfQuota(const std::string& text) {
  const auto words = WordsOf(text);
  if (words.size() != 2) return std::nullopt;
  const auto quota = NumberIn(words[0]);
  const auto period = NumberIn(words[1]);
  if (!quota || !period || *period == 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

// Version 1 has quota and period in two files; put together, they read as the one of version 2.
std::optional<Quota> TightestQuota(SystemView* system) {
  std::optional<Quota> tightest;
  for (const GroupFile& file : ReadGroups(system, "cpu", "cpu.max", "cpu.cfs_quota_us")) {
    const bool v1 = file.path.ends_with("cpu.cfs_quota_us");
    std::string text = file.text;
    if (v1) {
      std::string period = file.path;
      period.replace(period.rfind('/') + 1, std::string::npos, "cpu.cfs_period_us");
      const auto microseconds_of_period = system->ReadFile(period);
      if (!microseconds_of_period) continue;
      text += " " + *microseconds_of_period;
    }
    const auto cores = CoresOfQuota(text);  // -1 of version 1 is no number
    if (!cores || (tightest && tightest->cores <= *cores)) continue;
    tightest = Quota{*cores, fmt::format("echo {} > {}", v1 ? "-1" : "max", ShellWord(file.path))};
  }
  return tightest;
}

// ---- /proc/meminfo ------------------------------------------------------------------------------

std::optional<std::uint64_t> MemoryField(std::string_view meminfo, std::string_view name) {
  const auto at = meminfo.find(name);
  // Whole names only: "SwapTotal:" must not be found within another one.
  if (at == std::string_view::npos || (at > 0 && meminfo[at - 1] != '\n')) return std::nullopt;
  const auto words = WordsOf(meminfo.substr(at, 80));  // "SwapTotal:  1024 kB"
  const auto kilobytes = words.size() >= 2 ? NumberIn(words[1]) : std::nullopt;
  if (!kilobytes) return std::nullopt;
  return *kilobytes * kKiB;
}

// ---- NUMA ---------------------------------------------------------------------------------------

// Node of the interface's device, where the machine says.
std::optional<int> NodeOf(SystemView* system, const std::string& interface) {
  const auto node =
      ReadNumber(system, fmt::format("/sys/class/net/{}/device/numa_node", interface));
  if (!node || *node > 4096) return std::nullopt;  // -1 is no number: not on a node
  return static_cast<int>(*node);
}

bool Overlap(const std::vector<int>& a, const std::vector<int>& b) {
  return std::any_of(a.begin(), a.end(),
                     [&b](int core) { return std::binary_search(b.begin(), b.end(), core); });
}

bool Within(const std::vector<int>& a, const std::vector<int>& b) {
  return std::all_of(a.begin(), a.end(),
                     [&b](int core) { return std::binary_search(b.begin(), b.end(), core); });
}

// Memory of another node than the interface's crosses the link between the sockets, for each byte.
void AddInterfaceNode(const Context& context, const std::string& interface, Check* check) {
  const auto node = NodeOf(context.system, interface);
  if (!node) return;
  check->evidence += fmt::format("; {} is at node {}", interface, *node);
  const auto list =
      context.system->ReadFile(fmt::format("/sys/devices/system/node/node{}/cpulist", *node));
  if (!list) return;
  const auto near = CoreList(*list);
  const auto cores = context.system->Cores();
  if (near.empty() || Within(cores, near)) return;
  const bool far = !Overlap(cores, near);
  check->verdict = std::max(check->verdict, far ? Verdict::kWarning : Verdict::kNote);
  check->evidence +=
      far ? fmt::format(", and this process may run on none of its cores ({})", *list)
          : fmt::format(", this process may run on others' cores than its ({})", *list);
  if (check->fix.empty()) {
    check->fix = fmt::format("numactl --cpunodebind={0} --membind={0} ferry perf server", *node);
  }
}

// ---- links --------------------------------------------------------------------------------------

void AddLink(const Context& context, const std::string& interface, Check* check) {
  const auto read = [&](const char* file) {
    const auto text =
        context.system->ReadFile(fmt::format("/sys/class/net/{}/{}", interface, file));
    const auto words = text ? WordsOf(*text) : std::vector<std::string>{};
    return words.size() == 1 ? words.front() : std::string();
  };
  const auto speed = NumberIn(read("speed"));
  // Interfaces without a speed of their own have -1, or that as an unsigned number.
  const bool known = speed && *speed > 0 && *speed < kNoSpeed;
  const std::string duplex = read("duplex");
  check->evidence += fmt::format("{}{} {}", check->evidence.empty() ? "" : "; ", interface,
                                 known ? fmt::format("{} Mbit/s", *speed) : "of unknown speed");
  if (known && duplex == "half") {
    check->verdict = Verdict::kWarning;
    check->evidence += ", half duplex";
    check->fix = fmt::format("ethtool -s {} autoneg on", ShellWord(interface));
  } else if (known && *speed < kSlowLink) {
    check->verdict = Verdict::kWarning;
    check->evidence += ", less than the hardware of today can: look at cable and switch";
    check->fix = fmt::format("ethtool -r {}", ShellWord(interface));
  } else if (known && *speed == kSlowLink) {
    check->verdict = std::max(check->verdict, Verdict::kNote);
    check->evidence += ": 0.12 GB/s at most";
  }
}

}  // namespace

// ---- cores and memory ---------------------------------------------------------------------------

Check CheckCores(const Context& context) {
  Check check{"cores", Verdict::kOk, "", ""};
  const auto usable = context.system->Cores();
  if (usable.empty()) {
    return Skipped(check.id, "the kernel does not tell the usable cores");
  }
  const auto online = context.system->ReadFile("/sys/devices/system/cpu/online");
  const std::size_t all = online ? CoreList(*online).size() : 0;
  const auto quota = TightestQuota(context.system);
  check.evidence = fmt::format("{} usable", usable.size());
  if (all != 0) check.evidence += fmt::format(" of {}", all);
  if (all > usable.size()) {
    check.verdict = Verdict::kNote;
    check.fix = fmt::format("taskset -pc {} $$", WordsOf(*online).front());
  }
  if (quota && quota->cores < static_cast<double>(usable.size())) {
    check.evidence += fmt::format(
        "; a control group gives the time of {:.1f}: threads that want "
        "more are halted for the rest of each period",
        quota->cores);
    check.verdict = Verdict::kWarning;
    check.fix = quota->fix;
  } else if (usable.size() == 1) {
    check.evidence += "; the application and the transfers take turns on it";
    check.verdict = Verdict::kWarning;
  }
  return check;
}

Check CheckNuma(const Context& context) {
  Check check{"numa", Verdict::kOk, "", ""};
  const auto online = context.system->ReadFile("/sys/devices/system/node/online");
  if (!online) return Skipped(check.id, online.error());
  const auto nodes = CoreList(*online);
  if (nodes.empty()) {
    return Skipped(check.id, "the nodes online are \"{}\"", online->substr(0, 60));
  }
  check.evidence = nodes.size() == 1 ? "one node" : fmt::format("{} nodes", nodes.size());
  if (nodes.size() == 1) return check;
  for (const std::string& interface : context.interfaces) {
    AddInterfaceNode(context, interface, &check);
  }
  return check;
}

Check CheckLinks(const Context& context) {
  Check check{"link", Verdict::kOk, "", ""};
  if (context.interfaces.empty()) {
    return Skipped(check.id, "no interface is known to be used");
  }
  if (context.loopback) {
    check.evidence = "loopback: as fast as memory is copied";
    return check;
  }
  for (const std::string& interface : context.interfaces) AddLink(context, interface, &check);
  return check;
}

Check CheckMemory(const Context& context) {
  Check check{"memory", Verdict::kOk, "", ""};
  const auto meminfo = context.system->ReadFile("/proc/meminfo");
  if (!meminfo) return Skipped(check.id, meminfo.error());
  const auto total = MemoryField(*meminfo, "MemTotal:");
  const auto available = MemoryField(*meminfo, "MemAvailable:");
  if (!total || !available) {
    return Skipped(check.id, "/proc/meminfo has no MemTotal and MemAvailable in kB");
  }
  check.evidence = fmt::format("{} of {} available", SizeText(*available), SizeText(*total));
  std::uint64_t limit = kUnlimited;
  std::string tightest;
  for (const GroupFile& file :
       ReadGroups(context.system, "memory", "memory.max", "memory.limit_in_bytes")) {
    const auto bytes = NumberIn(file.text);  // "max" is no number
    if (!bytes || *bytes >= kNoMemoryLimit || *bytes >= limit) continue;
    limit = *bytes;
    tightest = file.path;
  }
  if (limit < *total) {
    check.verdict = limit < kMinMemory ? Verdict::kWarning : Verdict::kNote;
    check.evidence +=
        fmt::format("; a control group allows {}, page cache of files included", SizeText(limit));
    check.fix = fmt::format("echo {} > {}", tightest.ends_with("memory.max") ? "max" : "-1",
                            ShellWord(tightest));
  } else if (*available < kMinMemory) {
    check.verdict = Verdict::kWarning;
    check.fix = "ps -eo rss,pid,comm --sort=-rss | head";
  }
  return check;
}

Check CheckSwap(const Context& context) {
  Check check{"swap", Verdict::kOk, "", ""};
  const auto meminfo = context.system->ReadFile("/proc/meminfo");
  if (!meminfo) return Skipped(check.id, meminfo.error());
  const auto total = MemoryField(*meminfo, "SwapTotal:");
  const auto unused = MemoryField(*meminfo, "SwapFree:");
  if (!total || !unused || *unused > *total) {
    return Skipped(check.id, "/proc/meminfo has no SwapTotal and SwapFree in kB");
  }
  if (*total == 0) {
    check.evidence = "none";
    return check;
  }
  const std::uint64_t used = *total - *unused;
  check.evidence = fmt::format("{} of {} in use", SizeText(used), SizeText(*total));
  if (used == 0) return check;
  check.verdict = Verdict::kNote;
  check.evidence += ": a transfer from memory that was swapped out goes at the disk's speed";
  check.fix = "swapoff -a && swapon -a";
  return check;
}

Check CheckHugePages(const Context& context) {
  constexpr const char* kMode = "/sys/kernel/mm/transparent_hugepage/enabled";
  Check check{"huge_pages", Verdict::kOk, "", ""};
  const auto text = context.system->ReadFile(kMode);
  if (!text) return Skipped(check.id, text.error());
  const auto open = text->find('[');  // "always [madvise] never"
  const auto close = text->find(']');
  if (open == std::string::npos || close == std::string::npos || close < open) {
    return Skipped(check.id,
                   "{} holds \"{}\", which chooses "
                   "nothing",
                   kMode, text->substr(0, 60));
  }
  const std::string mode = text->substr(open + 1, close - open - 1);
  check.evidence = fmt::format("transparent: {}", mode);
  if (const auto reserved = ReadNumber(context.system, SysctlPath("vm.nr_hugepages"))) {
    check.evidence += fmt::format("; {} reserved", *reserved);
  }
  if (mode != "never") return check;
  check.verdict = Verdict::kNote;
  check.evidence += "; copies of large tensors spend more on page tables";
  check.fix = fmt::format("echo madvise > {}", kMode);
  return check;
}

// ---- limits -------------------------------------------------------------------------------------

Check CheckLockedMemory(const Context& context) {
  const Limit limit = context.system->LimitOf(RLIMIT_MEMLOCK);
  Check check{"locked_memory", Verdict::kOk,
              fmt::format("{}, at most {}", SizeText(limit.soft), SizeText(limit.hard)), ""};
  if (limit.soft >= kMinLocked) return check;
  check.verdict = Verdict::kNote;
  check.evidence += ": pools of pinned memory will not fit";
  check.fix = limit.hard == kUnlimited
                  ? std::string("ulimit -l unlimited")
                  : std::string(
                        "echo '* - memlock unlimited' > "
                        "/etc/security/limits.d/90-ferry.conf  # and log in again");
  return check;
}

Check CheckOpenFiles(const Context& context) {
  const Limit limit = context.system->LimitOf(RLIMIT_NOFILE);
  // Without a setting the library takes half the cores, from 2 to 16, and one more.
  const std::uint64_t lanes =
      context.config.lanes > 0
          ? static_cast<std::uint64_t>(context.config.lanes)
          : std::clamp<std::uint64_t>(context.system->Cores().size() / 2, 2, 16) + 1;
  Check check{"open_files", Verdict::kOk,
              fmt::format("{}, at most {}", CountText(limit.soft), CountText(limit.hard)), ""};
  if (limit.soft >= kWantedFiles) return check;
  check.verdict = limit.soft < kMinFiles ? Verdict::kWarning : Verdict::kNote;
  check.evidence += fmt::format(": enough for about {} peers of {} lanes",
                                limit.soft / (kFilesPerLane * lanes), lanes);
  check.fix = limit.hard >= kWantedFiles
                  ? fmt::format("ulimit -n {}", std::min<std::uint64_t>(limit.hard, 65536))
                  : std::string(
                        "echo '* - nofile 65536' > "
                        "/etc/security/limits.d/91-ferry.conf  # and log in again");
  return check;
}

Check CheckClock(const Context& context) {
  Check check{"clock", Verdict::kOk, "", ""};
  const auto clock = context.system->Clock();
  if (!clock) return Skipped(check.id, clock.error());
  if (clock->synchronised) {
    check.evidence = fmt::format("synchronised within {} us", clock->max_error_us);
    return check;
  }
  check.verdict = Verdict::kNote;
  check.evidence = "not synchronised: times in the logs of two machines cannot be compared";
  check.fix = "timedatectl set-ntp true";
  return check;
}

}  // namespace ferry::tools
