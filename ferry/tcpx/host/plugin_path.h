// Which network plugin was asked for, and by which setting.
#pragma once
#include <string>

#include "ferry/core/config.h"

namespace ferry::tcpx {

// The variable by which UCCL's users name the plugin.
inline constexpr const char* kUcclPluginVariable = "UCCL_TCPX_PLUGIN_PATH";

// The requested plugin, and the setting that named it.
struct PluginPath {
  std::string path;  // empty: none requested
  std::string source;
};
// config.net_plugin, or else the value of kUcclPluginVariable.
PluginPath FindPluginPath(const Config& config);

}  // namespace ferry::tcpx
