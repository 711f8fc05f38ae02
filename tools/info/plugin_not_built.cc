// Stands for the plugin section of `ferry info` in builds without the host of NCCL network plugins.
#ifdef FERRY_WITHOUT_TCPX

#include "tools/info/plugin.h"
#include "tools/support/report.h"

namespace ferry::tools {

Json PluginInfo(const Config& config) {
  if (config.net_plugin.empty()) return nullptr;
  Json info{{"path", config.net_plugin}, {"source", "net_plugin"}};
  info.update(ErrorToJson(Error(Code::kUnsupported,
                                "this build has no host of NCCL network plugins; configure it with "
                                "-DFERRY_TCPX=ON")));
  return info;
}

void PrintPlugin(const Json& plugin) {
  PrintLine(plugin.is_null()
                ? "  none; this build has no host of NCCL network plugins (FERRY_TCPX=OFF)"
                : "  " + plugin["error"]["message"].get<std::string>());
}

}  // namespace ferry::tools

#endif  // FERRY_WITHOUT_TCPX
