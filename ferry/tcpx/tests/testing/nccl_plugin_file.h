// Where the library's own plugin for NCCL is: FERRY_NCCL_PLUGIN_FILE says so on a machine that it
// was brought to, elsewhere the build does.
#pragma once

#include <cstdlib>
#include <string>

namespace ferry::tcpx::testing {

inline std::string NcclPluginFile() {
  const char* const brought = std::getenv("FERRY_NCCL_PLUGIN_FILE");
  return brought != nullptr ? brought : FERRY_NCCL_PLUGIN;
}

}  // namespace ferry::tcpx::testing
