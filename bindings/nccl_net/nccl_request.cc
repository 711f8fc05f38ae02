// Chooses the NCCL variables that this plugin sets.
#include "bindings/nccl_net/nccl_request.h"

#include <fmt/core.h>
#include <strings.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

#include "bindings/nccl_net/plugin.h"
#include "bindings/nccl_net/report.h"
#include "bindings/nccl_net/tuner.h"

namespace ferry::nccl_net {
namespace {

constexpr const char* kChunk = "524288";
constexpr const char* kMinChannels = "NCCL_MIN_NCHANNELS";

// NCCL variables that bound the number of channels, which a minimum set here could exceed.
constexpr std::array kBounds = {"NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS", "NCCL_MIN_NRINGS",
                                "NCCL_MAX_CTAS", "NCCL_MIN_CTAS"};

std::string_view ValueOf(const Config::Getter& get, const char* name) {
  const char* const text = get(name);
  return text == nullptr ? std::string_view() : text;
}

bool IsOurs(std::string_view net) {
  return net.empty() || ::strcasecmp(std::string(net).c_str(), kPluginName) == 0;
}

}  // namespace

NcclRequest RequestOf(const NcclSettings& settings, const Config::Getter& get,
                      const NcclTuner& tuner) {
  NcclRequest request;
  request.devices = static_cast<std::size_t>(settings.nccl_devices);
  const int channels = settings.nccl_channels;
  if (channels == 0 || !IsOurs(ValueOf(get, "NCCL_NET"))) return request;
  if (ValueOf(get, "NCCL_P2P_NET_CHUNKSIZE").empty()) {
    request.variables.emplace_back("NCCL_P2P_NET_CHUNKSIZE", kChunk);
  }
  const bool bounded = std::any_of(kBounds.begin(), kBounds.end(),
                                   [&](const char* name) { return !ValueOf(get, name).empty(); });
  if (bounded) return request;
  if (tuner.whose != RankTuner::kThisLibrary) {
    if (tuner.whose == RankTuner::kNotFound) {
      request.warning = fmt::format(
          "NCCL_TUNER_PLUGIN names {}, which was not found, so FERRY_NCCL_CHANNELS is not asked "
          "for; correct the name, or unset NCCL_TUNER_PLUGIN on all ranks to use the tuner in this "
          "plugin",
          tuner.path);
      return request;
    }
    // A user who names an existing tuner does so deliberately.
    if (!ValueOf(get, "NCCL_TUNER_PLUGIN").empty()) return request;
    request.warning = fmt::format(
        "NCCL takes its tuner from {}, in place of the one in this plugin, so FERRY_NCCL_CHANNELS "
        "is not asked for; set NCCL_TUNER_PLUGIN to the path of libnccl-net-ferry.so on all ranks, "
        "or to that of the other tuner",
        tuner.path);
    return request;
  }
  const std::string wanted = std::to_string(channels);
  const std::string_view set = ValueOf(get, kMinChannels);
  if (set.empty()) request.variables.emplace_back(kMinChannels, wanted);
  // Judge by the number and not by who set it: processes inherit variables.
  if (channels >= kFewChannels && (set.empty() || set == wanted)) request.tuned_channels = channels;
  return request;
}

void Ask(const NcclRequest& request) {
  TuneForChannels(request.tuned_channels);
  if (!request.warning.empty()) Warn(request.warning);
  std::string said;
  for (const auto& [name, value] : request.variables) {
    (void)::setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
    said += fmt::format("{}{}={}", said.empty() ? "" : ", ", name, value);
  }
  if (said.empty()) return;
  InformInit(fmt::format(
      "set for this process: {}; FERRY_NCCL_CHANNELS=0, on all ranks, leaves NCCL alone", said));
}

}  // namespace ferry::nccl_net
