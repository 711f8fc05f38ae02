// Which network plugin was asked for, and by which setting.
#pragma once
#include <string>

#include "ferry/core/config.h"

namespace ferry::net::plugin {

// By which users of UCCL have named the plugin.
inline constexpr const char* kUcclPluginVariable = "UCCL_TCPX_PLUGIN_PATH";

// The plugin that was asked for, with what named it.
struct PluginPath {
  std::string path;  // empty: none was
  std::string source;
};
// config.net_plugin, or what kUcclPluginVariable says.
PluginPath FindPluginPath(const Config& config);

}  // namespace ferry::net::plugin
