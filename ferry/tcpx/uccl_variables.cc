// Translates the environment variables of UCCL's TCPX library into settings.
#include "ferry/tcpx/uccl_variables.h"

#include <fmt/core.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "ferry/tcpx/factory.h"
#include "ferry/tcpx/host/plugin_path.h"

namespace ferry::tcpx {
namespace {

constexpr const char* kDebug = "UCCL_TCPX_DEBUG";
constexpr const char* kLaunchDebug = "UCCL_TCPX_LAUNCH_DEBUG";
constexpr const char* kHostReceiveDebug = "UCCL_TCPX_HOST_RECV_DEBUG";

struct Translation {
  const char* variable;
  const char* setting;
};
constexpr Translation kTranslations[] = {
    {"UCCL_TCPX_NUM_CHANNELS", "lanes"},
    {"UCCL_TCPX_CHUNK_BYTES", "plugin_chunk_bytes"},
    {"UCCL_TCPX_UNPACK_IMPL", "plugin_unpack"},
};

constexpr UcclVariable kVariables[] = {
    {kUcclPluginVariable, "net_plugin, where that is not set"},
    {kTranslations[0].variable, "lanes, with a plugin"},
    {kTranslations[1].variable, "plugin_chunk_bytes"},
    {kTranslations[2].variable, "plugin_unpack: kernel (also if unset), d2d (dma here) or host"},
    {kUcclPerfSize, "--size of perf"},
    {kUcclPerfIterations, "--iters of perf"},
    {kDebug, "1: log_level=info, with a plugin"},
    {kLaunchDebug, "1: as the one before, and lines for each chunk and each launch"},
    {kHostReceiveDebug, "1: as UCCL_TCPX_DEBUG, and the first bytes of payloads in host memory"},
};

bool IsSwitchedOn(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr && *value != '\0' && std::string_view(value) != "0";
}

}  // namespace

std::span<const UcclVariable> UcclVariables() { return kVariables; }

Status ApplyUcclVariables(Config* config) {
  const std::string provider =
      config->provider == "auto" ? ChooseForMachine(*config).provider : config->provider;
  if (provider.rfind("plugin", 0) != 0) return Ok();
  for (const Translation& one : kTranslations) {
    const char* const value = std::getenv(one.variable);
    if (value == nullptr || *value == '\0' || config->IsSet(one.setting)) continue;
    const std::string_view text = std::string_view(value) == "d2d" ? "dma" : value;
    if (const Status set = config->Set(one.setting, text, one.variable); !set) {
      return Error(set.error().code(), fmt::format("{} {} cannot be used: {}", one.variable, value,
                                                   set.error().message()));
    }
  }
  const bool wordy =
      IsSwitchedOn(kDebug) || IsSwitchedOn(kLaunchDebug) || IsSwitchedOn(kHostReceiveDebug);
  if (wordy && config->log_level > LogLevel::kInfo) return config->Set("log_level", "info", kDebug);
  return Ok();
}

UcclLogSwitches ReadUcclLogSwitches() {
  return {IsSwitchedOn(kLaunchDebug), IsSwitchedOn(kHostReceiveDebug)};
}

}  // namespace ferry::tcpx
