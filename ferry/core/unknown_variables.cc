// Suggests the setting that a misspelt FERRY_* variable may mean.
#include "ferry/core/unknown_variables.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/log.h"

namespace ferry {
namespace {

// The Levenshtein distance: the minimum number of insertions, deletions and replacements.
std::size_t EditsBetween(std::string_view from, std::string_view to) {
  std::vector<std::size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < from.size(); ++i) {
    // One row of the table at a time; `diagonal` is the entry above and to the left.
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < to.size(); ++j) {
      const std::size_t replaced = diagonal + (from[i] == to[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string DescribeUnknown(const std::string& variable) {
  std::string nearest;
  std::size_t least = variable.size() / 3;  // further away it is a different word
  for (const ConfigEntry& entry : Config().Describe()) {
    const std::size_t edits = EditsBetween(variable, entry.variable);
    if (edits > least || (edits == least && !nearest.empty())) continue;
    least = edits;
    nearest = entry.variable;
  }
  return fmt::format("{} is not a setting; {}", variable,
                     nearest.empty() ? "'ferry info' lists all settings"
                                     : fmt::format("did you mean {}?", nearest));
}

void WarnOfUnknownVariables() {
  static std::atomic<bool> warned{false};
  if (warned.exchange(true)) return;
  for (const std::string& variable : UnknownVariables()) {
    Log(LogLevel::kWarn, "config", "{}", DescribeUnknown(variable));
  }
}

}  // namespace ferry
