#include "ferry/net/plugin/plugin_path.h"

#include <cstdlib>

namespace ferry::net::plugin {
namespace {

constexpr const char* kOtherName = "UCCL_TCPX_PLUGIN_PATH";

}  // namespace

PluginPath FindPluginPath(const Config& config) {
  if (!config.net_plugin.empty()) return {config.net_plugin, "net_plugin"};
  const char* const other = std::getenv(kOtherName);
  if (other == nullptr || *other == '\0') return {};
  return {other, kOtherName};
}

}  // namespace ferry::net::plugin
