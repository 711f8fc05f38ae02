// Reads the affinity mask, the cgroup's limits and the launcher's variables.
#include "plugins/nccl/setup/cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>
#include <system_error>

namespace ferry::nccl_net {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

// In cores. cgroup version 2: "150000 100000" (microseconds of each period), or "max 100000";
// version 1 has the two numbers in two files, and a negative quota for none.
double QuotaIn(const std::string& folder, bool unified) {
  std::ifstream quota_file(folder + (unified ? "/cpu.max" : "/cpu.cfs_quota_us"));
  std::ifstream period_file(folder + "/cpu.cfs_period_us");
  double quota = 0;
  double period = 0;
  const bool known = quota_file >> quota && (unified ? quota_file : period_file) >> period;
  return known && quota > 0 && period > 0 ? quota / period : kNoLimit;
}

// The size of the cgroup's set of CPUs ("0-3,8"), or kNoLimit.
double CpusIn(const std::string& folder, bool unified) {
  std::ifstream in(folder + (unified ? "/cpuset.cpus.effective" : "/cpuset.effective_cpus"));
  double cpus = 0;
  for (std::string part; std::getline(in, part, ',');) {
    std::istringstream range(part);
    unsigned first = 0;
    if (!(range >> first)) return kNoLimit;
    unsigned last = first;
    if (range.get() == '-' && (!(range >> last) || last < first)) return kNoLimit;
    cpus += static_cast<double>(last - first) + 1;
  }
  if (cpus == 0) return kNoLimit;
  return cpus;
}

// A hierarchy of cgroups, and which limits it has; version 2 has both.
struct Hierarchy {
  std::string mount;
  bool unified = false;
  bool has_quota = false;
  bool has_cpus = false;
};

double LimitIn(const Hierarchy& hierarchy, const std::string& path) {
  const std::string folder = hierarchy.mount + path;
  const double quota = hierarchy.has_quota ? QuotaIn(folder, hierarchy.unified) : kNoLimit;
  return hierarchy.has_cpus ? std::min(quota, CpusIn(folder, hierarchy.unified)) : quota;
}

// The tightest limit of this process's cgroup and those above it.
double TightestLimit(const std::string& root) {
  std::ifstream groups(root + "/proc/self/cgroup");
  double tightest = kNoLimit;
  for (std::string line; std::getline(groups, line);) {
    // "0::/path" in version 2, "4:cpu,cpuacct:/path" in version 1.
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    Hierarchy hierarchy{.mount = root + "/sys/fs/cgroup", .unified = controllers == ",,"};
    const auto has = [&](const char* controller) {
      return hierarchy.unified || controllers.find(controller) != std::string::npos;
    };
    hierarchy.has_quota = has(",cpu,");
    hierarchy.has_cpus = has(",cpuset,");
    if (!hierarchy.unified) hierarchy.mount += hierarchy.has_cpus ? "/cpuset" : "/cpu";
    // In a container the path may be the host's, of which only the root exists here.
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    while (true) {
      tightest = std::min(tightest, LimitIn(hierarchy, path));
      if (path.empty()) break;
      path.resize(std::min(path.rfind('/'), path.size() - 1));
    }
  }
  return tightest;
}

unsigned CoresOfMachine() {
  return static_cast<unsigned>(std::max(::sysconf(_SC_NPROCESSORS_CONF), 1L));
}

unsigned CoresOfMask() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  // It fails on machines with more cores than the set can hold.
  if (::sched_getaffinity(0, sizeof mask, &mask) != 0) return CoresOfMachine();
  return static_cast<unsigned>(std::max(CPU_COUNT(&mask), 1));
}

}  // namespace

unsigned LocalRanks(const Config::Getter& get) {
  constexpr std::array kVariables = {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
                                     "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"};
  for (const char* name : kVariables) {
    const char* const text = get(name);
    if (text == nullptr) continue;
    const char* const end = text + std::strlen(text);
    unsigned ranks = 0;
    const auto [rest, error] = std::from_chars(text, end, ranks);
    if (error == std::errc() && rest == end && ranks > 0) return ranks;
  }
  return 0;
}

unsigned UsableCores(const Config::Getter& get, const std::string& root) {
  const double all = std::min<double>(CoresOfMachine(), TightestLimit(root));
  const double share = all / std::max(LocalRanks(get), 1U);
  return std::clamp(static_cast<unsigned>(share), 1U, CoresOfMask());
}

}  // namespace ferry::nccl_net
