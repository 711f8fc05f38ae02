// Thread creation errors, with the limits that may have been reached.
#include "ferry/core/loop/thread.h"

#include <fmt/core.h>
#include <sys/resource.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

namespace ferry {
namespace {

// The first word of a file; empty on failure.
std::string FirstWord(const std::string& path) {
  std::string word;
  std::ifstream(path) >> word;
  return word;
}

std::string ThreadsOfThisProcess() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    std::istringstream words(line);
    std::string name;
    std::string count;
    if (words >> name >> count && name == "Threads:") return count;
  }
  return "unknown";
}

// ", 100 of 128 in its cgroup (pids.max)"; empty where there is no limit.
std::string CgroupLimit() {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const auto colon = line.rfind(':');
    // cgroup version 2 has the line "0::/path", version 1 a line for its pids controller.
    const bool unified = line.starts_with("0::");
    if (!unified && line.find(":pids:") == std::string::npos) continue;
    const std::string folder =
        (unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/pids") + line.substr(colon + 1);
    const std::string most = FirstWord(folder + "/pids.max");
    if (most.empty() || most == "max") continue;
    return fmt::format(", {} of {} in its cgroup (pids.max)", FirstWord(folder + "/pids.current"),
                       most);
  }
  return {};
}

std::string Allowed(rlim_t limit, std::string_view of_what) {
  return limit == RLIM_INFINITY ? "" : fmt::format(", {} {}", limit, of_what);
}

}  // namespace

// EAGAIN alone does not tell which of several limits was reached, so all of them are named.
Error CannotStartThread(std::string_view what, int error_number) {
  rlimit threads{RLIM_INFINITY, RLIM_INFINITY};
  rlimit addresses = threads;
  (void)::getrlimit(RLIMIT_NPROC, &threads);
  (void)::getrlimit(RLIMIT_AS, &addresses);
  return Error(
      Code::kUnavailable,
      fmt::format("cannot start a thread for {}: {}; there are {} threads in this "
                  "process{}{}{}: raise the limit that is reached, or run fewer threads "
                  "(FERRY_WORKERS)",
                  what, std::strerror(error_number), ThreadsOfThisProcess(),
                  Allowed(threads.rlim_cur, "allowed for its user (ulimit -u)"), CgroupLimit(),
                  Allowed(addresses.rlim_cur, "bytes of addresses allowed (ulimit -v)")));
}

}  // namespace ferry
