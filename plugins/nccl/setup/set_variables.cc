// Puts a new array in place of the process's environment.
#include "plugins/nccl/setup/set_variables.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <list>
#include <mutex>
#include <string_view>

#include "ferry/core/fork.h"

namespace ferry::nccl_net {
namespace {

struct Environment {
  std::list<std::string> texts;  // "NAME=value", of those that were set
  std::vector<char*> all;        // as environ(7) has them
};

struct Environments {
  std::mutex mutex;
  std::list<Environment> made;  // under mutex
};
// Never destroyed, nor anything in it: any thread may have pointers into it.
Environments& TheEnvironments() {
  static PerProcess<Environments> environments;
  return environments.Get();
}

bool IsOf(std::string_view entry, std::string_view name) {
  return entry.size() > name.size() && entry[name.size()] == '=' && entry.starts_with(name);
}

}  // namespace

void SetVariables(const std::vector<std::pair<std::string, std::string>>& variables) {
  if (variables.empty()) return;
  Environments& environments = TheEnvironments();
  const std::lock_guard lock(environments.mutex);
  Environment& next = environments.made.emplace_back();
  for (char* const* entry = ::environ; entry != nullptr && *entry != nullptr; ++entry) {
    const bool is_set = std::any_of(variables.begin(), variables.end(), [&](const auto& variable) {
      return IsOf(*entry, variable.first);
    });
    if (!is_set) next.all.push_back(*entry);
  }
  for (const auto& [name, value] : variables) {
    next.all.push_back(next.texts.emplace_back(fmt::format("{}={}", name, value)).data());
  }
  next.all.push_back(nullptr);
  std::atomic_ref(::environ).store(next.all.data(), std::memory_order_release);
}

}  // namespace ferry::nccl_net
