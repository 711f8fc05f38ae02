// What the doctor's checks of our plug-ins share: variables, findings, and whether a file can be
// loaded. No check loads one: that would run its code in the doctor's process.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/deadline.h"
#include "tools/doctor/check.h"
#include "tools/doctor/system.h"

namespace ferry::tools {

// The inputs that the checks of a plug-in share.
struct PluginSetup {
  SystemView* system = nullptr;
  Config config;
  std::map<std::string, std::string> environment;
  Deadline deadline;

  // The value of an environment variable; an empty one counts as unset.
  std::optional<std::string> Variable(const std::string& name) const;
};

// The numbers of "2.36" or "1.5.1": (2, 36), (1, 5); nothing for a text that does not begin so.
using MajorMinor = std::pair<std::uint64_t, std::uint64_t>;
std::optional<MajorMinor> MajorMinorOf(std::string_view text);
// The path up to its last slash.
std::string FolderOf(const std::string& path);
// The parts between the marks that are not empty.
std::vector<std::string> SplitAt(std::string_view text, char mark);
// Adds what keeps the loader from loading the file: no readable file, a mount with noexec,
// libraries and symbols that it does not find.
void AddLoading(const PluginSetup& setup, const std::string& path, Check* check);

}  // namespace ferry::tools
