#include "bindings/nccl_net/nccl_request.h"

#include <fmt/core.h>
#include <strings.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "bindings/nccl_net/plugin.h"
#include "bindings/nccl_net/report.h"
#include "bindings/nccl_net/tuner.h"

namespace ferry::nccl_net {
namespace {

constexpr int kChannels = 8;  // more take more of the GPU, and 16 gained nothing
constexpr int kMostChannels = 64;
constexpr int kMostDevices = 32;
constexpr const char* kChunk = "524288";
constexpr const char* kLeastChannels = "NCCL_MIN_NCHANNELS";

// Of NCCL's: bounds, which a least number of channels would go beyond, and other tuners.
constexpr std::array kBounds = {"NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS", "NCCL_MIN_NRINGS",
                                "NCCL_MAX_CTAS",      "NCCL_MIN_CTAS",   "NCCL_TUNER_PLUGIN"};

std::string_view ValueOf(const Config::Getter& get, const char* name) {
  const char* const text = get(name);
  return text == nullptr ? std::string_view() : text;
}

// A whole number up to `most`; `usual` where nobody has set it.
Result<int> NumberOf(const Config::Getter& get, const char* name, int usual, int most) {
  const std::string_view given = ValueOf(get, name);
  if (given.empty()) return usual;
  int number = -1;
  const auto [end, error] = std::from_chars(given.data(), given.data() + given.size(), number);
  const bool whole = error == std::errc() && end == given.data() + given.size();
  if (whole && number >= 0 && number <= most) return number;
  return Error(Code::kInvalidArgument,
               fmt::format("{} is \"{}\"; give 0 (NCCL decides) to {}", name, given, most));
}

bool IsOurs(std::string_view net) {
  return net.empty() || ::strcasecmp(std::string(net).c_str(), kPluginName) == 0;
}

}  // namespace

Result<NcclRequest> RequestOf(const Config::Getter& get) {
  NcclRequest request;
  FERRY_TRY_ASSIGN(const int channels,
                   NumberOf(get, "FERRY_NCCL_CHANNELS", kChannels, kMostChannels));
  FERRY_TRY_ASSIGN(const int devices, NumberOf(get, "FERRY_NCCL_DEVICES", 1, kMostDevices));
  if (channels == 0 || !IsOurs(ValueOf(get, "NCCL_NET"))) return request;
  if (ValueOf(get, "NCCL_P2P_NET_CHUNKSIZE").empty()) {
    request.variables.emplace_back("NCCL_P2P_NET_CHUNKSIZE", kChunk);
  }
  const bool bounded = std::any_of(kBounds.begin(), kBounds.end(),
                                   [&](const char* name) { return !ValueOf(get, name).empty(); });
  if (bounded) return request;
  const std::string wanted = std::to_string(channels);
  const std::string_view set = ValueOf(get, kLeastChannels);
  if (set.empty()) request.variables.emplace_back(kLeastChannels, wanted);
  // By the number and not by who set it: processes inherit variables.
  if (channels < kFewChannels || (!set.empty() && set != wanted)) return request;
  request.tuned_channels = channels;
  request.devices = static_cast<std::size_t>(std::max(devices, 1));
  return request;
}

void Ask(const NcclRequest& request) {
  TuneForChannels(request.tuned_channels);
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
