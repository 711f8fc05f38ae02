// Reads and lists the environment variables of UCCL's TCPX library.

#include "ferry/tools/support/uccl_variables.h"

#include <fmt/core.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "ferry/net/plugin/plugin_path.h"
#include "ferry/tools/support/json.h"
#include "ferry/tools/support/report.h"

namespace ferry::tools {
namespace {

struct ForeignName {
  const char* name;
  const char* as;
};
constexpr ForeignName kForeignNames[] = {
    {net::plugin::kUcclPluginVariable, "net_plugin, where that is not set"},
    {kUcclUnpack, "--unpack: kernel, d2d (dma here) or host"},
    {kUcclChannels, "--channels"},
    {kUcclChunk, "--chunk"},
    {kUcclPerfSize, "--size of perf"},
    {kUcclPerfIterations, "--iters of perf"},
    {kUcclDebug, "1: log_level=info, with a plugin"},
    {kUcclLaunchDebug, "1: as the one before, and says each chunk that comes"},
};

}  // namespace

bool IsSwitchedOn(const char* variable) noexcept {
  const char* const value = std::getenv(variable);
  return value != nullptr && *value != '\0' && std::string_view(value) != "0";
}

Json UcclVariables() {
  Json all = Json::array();
  for (const ForeignName& one : kForeignNames) {
    const char* const value = std::getenv(one.name);
    all.push_back(Json{{"name", one.name},
                       {"value", value == nullptr ? Json(nullptr) : Json(value)},
                       {"as", one.as}});
  }
  return all;
}

void PrintUcclVariables(const Json& variables) {
  for (const Json& one : variables) {
    const std::string value = one["value"].is_null() ? "-" : one["value"].get<std::string>();
    PrintLine(fmt::format("  {:<24} {:<10} {}", one["name"].get<std::string>(), Printable(value),
                          one["as"].get<std::string>()));
  }
}

}  // namespace ferry::tools
