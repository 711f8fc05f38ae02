#pragma once
#include <string>

#include "ferry/core/config.h"

namespace ferry::net::plugin {

// The plugin that was asked for, with what named it.
struct PluginPath {
  std::string path;  // empty: none was
  std::string source;
};
// config.net_plugin, or what UCCL_TCPX_PLUGIN_PATH says, as users of UCCL have set it.
PluginPath FindPluginPath(const Config& config);

}  // namespace ferry::net::plugin
