// Loads an NCCL network plugin and reports its facts for `ferry info`.

#include "tools/info/plugin.h"

#include <fmt/core.h>

#include <string>

#include "ferry/tcpx/host/plugin.h"
#include "ferry/tcpx/host/plugin_path.h"
#include "tools/support/report.h"

namespace ferry::tools {
namespace {

Json DescribeNic(const tcpx::NicFacts& nic) {
  return Json{{"name", nic.name},
              {"pci_path", nic.pci_path},
              {"guid", nic.guid},
              {"megabits_per_second", nic.megabits},
              {"host_memory", nic.host_memory},
              {"cuda_memory", nic.cuda_memory},
              {"dma_buf", nic.dma_buf},
              {"unpacks", nic.unpacks},
              {"device_version", nic.device_version},
              {"most_message_bytes", nic.most_message_bytes},
              {"most_comms", nic.most_comms}};
}

}  // namespace

Json PluginInfo(const Config& config) {
  const tcpx::PluginPath asked = tcpx::FindPluginPath(config);
  if (asked.path.empty()) return nullptr;
  Json info{{"path", asked.path}, {"source", asked.source}};
  const auto plugin = tcpx::Plugin::Open(asked.path);
  if (!plugin) {
    info.update(ErrorToJson(plugin.error()));
    return info;
  }
  info["name"] = (*plugin)->name();
  info["version"] = (*plugin)->version();
  info["devices"] = Json::array();
  for (const tcpx::NicFacts& nic : (*plugin)->nics()) {
    info["devices"].push_back(DescribeNic(nic));
  }
  return info;
}

void PrintPlugin(const Json& plugin) {
  if (plugin.is_null()) {
    PrintLine("  none (FERRY_NET_PLUGIN names one)");
    return;
  }
  PrintLine(fmt::format("  {:<20} {} ({})", "path", plugin["path"].get<std::string>(),
                        plugin["source"].get<std::string>()));
  if (plugin.contains("error")) {
    PrintLine("  " + plugin["error"]["message"].get<std::string>());
    return;
  }
  PrintLine(fmt::format("  {:<20} {}, version {} of NCCL's interface", "name",
                        plugin["name"].get<std::string>(), DumpJson(plugin["version"])));
  for (const Json& nic : plugin["devices"]) {
    PrintLine(fmt::format("  {:<20} {} Gbit/s, {}{}{}", nic["name"].get<std::string>(),
                          nic["megabits_per_second"].get<double>() / 1000,
                          nic["host_memory"].get<bool>() ? "host memory " : "",
                          nic["cuda_memory"].get<bool>() ? "GPU memory " : "",
                          nic["unpacks"].get<bool>() ? "(in pieces, unpacked on the GPU)" : ""));
  }
}

}  // namespace ferry::tools
