// Finds out which network plugin was asked for.
#include "ferry/tcpx/host/plugin_path.h"

#include <cstdlib>

namespace ferry::tcpx {

PluginPath FindPluginPath(const Config& config) {
  if (!config.net_plugin.empty()) return {config.net_plugin, "net_plugin"};
  const char* const other = std::getenv(kUcclPluginVariable);
  if (other == nullptr || *other == '\0') return {};
  return {other, kUcclPluginVariable};
}

}  // namespace ferry::tcpx
