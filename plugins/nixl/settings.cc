// Reads settings from the environment and from the back end's parameters.
#include "plugins/nixl/settings.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>

#include "plugins/nixl/log.h"

namespace ferry::nixl {
namespace {

// A connection's watch for its end, a notification and the answer that it asks for are in flight at
// once, with a transfer.
constexpr std::uint32_t kMinOperations = 4;

}  // namespace

Result<Config> LoadSettings(const abi::Params& params) {
  FERRY_TRY_ASSIGN(Config config, Config::FromEnvironment());
  const std::vector<ConfigEntry> known = config.Describe();
  for (const auto& param : params) {
    const std::string& name = param.first;
    const std::string& text = param.second;
    const bool is_ours = std::any_of(known.begin(), known.end(),
                                     [&](const auto& entry) { return entry.name == name; });
    if (is_ours) {
      FERRY_TRY(config.Set(name, text, "parameter of the back end"));
    } else {
      Log(LogLevel::kInfo,
          fmt::format("parameter '{}' is not one of this back end; ignored", name));
    }
  }
  config.max_operations = std::max(config.max_operations, kMinOperations);
  FERRY_TRY(config.Validate());
  return config;
}

}  // namespace ferry::nixl
