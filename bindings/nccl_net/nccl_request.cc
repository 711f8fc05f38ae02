// Chooses the NCCL variables that this plugin sets.
#include "bindings/nccl_net/nccl_request.h"

#include <dlfcn.h>
#include <fmt/core.h>
#include <strings.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <string_view>

#include "bindings/nccl_net/plugin.h"
#include "bindings/nccl_net/report.h"
#include "bindings/nccl_net/tuner.h"

namespace ferry::nccl_net {
namespace {

constexpr const char* kChunk = "524288";
constexpr const char* kMinChannels = "NCCL_MIN_NCHANNELS";
constexpr const char* kPeerChannels = "NCCL_NCHANNELS_PER_NET_PEER";
constexpr const char* kChannelSpeed = "NCCL_P2P_PER_CHANNEL_NET_BW";

// NCCL 2.28 and later read kPeerChannels before they load a plugin.
constexpr int kPeerChannelsReadFirst = 22800;
// NCCL 2.29 and later create a channel for each kChannelSpeed GB/s of the device, up to the next
// power of two, and at most as many as collectives have; all ranks take the minimum of theirs.
constexpr int kPeerChannelsBySpeed = 22900;
// Eight channels for a device of 100 Gb/s. Eight carried 2.4 to 2.8 GB/s each; for 3, NCCL creates
// four channels, which were slower (12 GB/s instead of 20).
constexpr int kChannelGigabytes = 2;
constexpr int kMaxDevices = 32;
constexpr int kMaxMegabitsOfDevice = 20'000;

// NCCL variables that bound the number of channels, which a minimum set here could exceed.
constexpr std::array kBounds = {"NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS", "NCCL_MIN_NRINGS",
                                "NCCL_MAX_CTAS", "NCCL_MIN_CTAS"};

std::string_view ValueOf(const Config::Getter& get, const char* name) {
  const char* const text = get(name);
  return text == nullptr ? std::string_view() : text;
}

// 0 where the variable is not set, or not a number.
int NumberOf(const Config::Getter& get, const char* name) {
  return static_cast<int>(std::strtol(std::string(ValueOf(get, name)).c_str(), nullptr, 0));
}

bool IsOurs(std::string_view net) {
  return net.empty() || ::strcasecmp(std::string(net).c_str(), kPluginName) == 0;
}

// The channels between two ranks of different machines that NCCL creates by itself, or by what the
// user has set.
int ChannelsWithoutRequest(const Config::Getter& get, const NcclFacts& facts, std::size_t devices) {
  if (const int set = NumberOf(get, kPeerChannels); set > 0) return set;
  const int shown = static_cast<int>(devices);
  int channels = facts.version < kPeerChannelsBySpeed ? std::max(shown, 2) : shown;
  for (const char* bound : {"NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS", "NCCL_MAX_CTAS"}) {
    if (const int most = NumberOf(get, bound); most > 0) channels = std::min(channels, most);
  }
  return channels;
}

// NCCL 2.28 creates more channels between two ranks for more devices only.
void ShowDevices(int channels, const NcclFacts& facts, NcclRequest* request) {
  const bool alone = facts.local_ranks == 1 || (facts.local_ranks == 0 && facts.gpus.count == 1);
  if (!alone || facts.gpus.link != GpuLink::kDirect) {
    request->hint = fmt::format(
        "NCCL 2.28 creates two channels between two ranks here; for more, set "
        "NCCL_NCHANNELS_PER_NET_PEER={} or NCCL_ENV_PLUGIN to the path of libnccl-net-ferry.so, on "
        "all ranks",
        channels);
    return;
  }
  // NCCL rounds their number up to a power of two.
  request->devices = static_cast<std::size_t>(std::min(channels / 2 + 1, kMaxDevices));
  request->max_megabits = kMaxMegabitsOfDevice;
  request->peer_channels = channels;
}

// Asks for channels of send and receive in the way that this version of NCCL has.
void AskForPeerChannels(int channels, const Config& settings, const Config::Getter& get,
                        const NcclFacts& facts, NcclRequest* request) {
  if (!ValueOf(get, kPeerChannels).empty()) return;
  if (facts.version < kPeerChannelsReadFirst) {
    request->variables.emplace_back(kPeerChannels, std::to_string(channels));
    request->peer_channels = channels;
  } else if (facts.version < kPeerChannelsBySpeed) {
    if (!settings.IsSet("nccl_devices")) ShowDevices(channels, facts, request);
  } else {
    if (ValueOf(get, kChannelSpeed).empty()) {
      request->variables.emplace_back(kChannelSpeed, std::to_string(kChannelGigabytes));
    }
    // As NCCL computes it.
    const int by_speed = (facts.megabits / 8000 + kChannelGigabytes - 1) / kChannelGigabytes;
    const auto rounded = std::bit_ceil(static_cast<unsigned>(std::max(by_speed, 1)));
    request->peer_channels =
        std::max(std::min(static_cast<int>(rounded), channels), static_cast<int>(request->devices));
  }
}

void AskForChannels(const Config& settings, const Config::Getter& get, const NcclTuner& tuner,
                    const NcclFacts& facts, NcclRequest* request) {
  const int channels = settings.nccl_channels;
  if (ValueOf(get, "NCCL_P2P_NET_CHUNKSIZE").empty()) {
    request->variables.emplace_back("NCCL_P2P_NET_CHUNKSIZE", kChunk);
  }
  const bool bounded = std::any_of(kBounds.begin(), kBounds.end(),
                                   [&](const char* name) { return !ValueOf(get, name).empty(); });
  if (bounded) return;
  if (tuner.whose != RankTuner::kThisLibrary) {
    if (tuner.whose == RankTuner::kNotFound) {
      request->warning = fmt::format(
          "NCCL_TUNER_PLUGIN names {}, which was not found, so FERRY_NCCL_CHANNELS is not asked "
          "for; correct the name, or unset NCCL_TUNER_PLUGIN on all ranks to use the tuner in this "
          "plugin",
          tuner.path);
      return;
    }
    // A user who names an existing tuner does so deliberately.
    if (!ValueOf(get, "NCCL_TUNER_PLUGIN").empty()) return;
    request->warning = fmt::format(
        "NCCL takes its tuner from {}, in place of the one in this plugin, so FERRY_NCCL_CHANNELS "
        "is not asked for; set NCCL_TUNER_PLUGIN to the path of libnccl-net-ferry.so on all ranks, "
        "or to that of the other tuner",
        tuner.path);
    return;
  }
  const std::string wanted = std::to_string(channels);
  const std::string_view set = ValueOf(get, kMinChannels);
  if (set.empty()) request->variables.emplace_back(kMinChannels, wanted);
  // Judge by the number and not by who set it: processes inherit variables.
  if (channels >= kFewChannels && (set.empty() || set == wanted))
    request->tuned_channels = channels;
  AskForPeerChannels(channels, settings, get, facts, request);
}

}  // namespace

NcclRequest RequestOf(const Config& settings, const Config::Getter& get, const NcclTuner& tuner,
                      const NcclFacts& facts) {
  NcclRequest request;
  request.devices = static_cast<std::size_t>(settings.nccl_devices);
  request.peer_channels = ChannelsWithoutRequest(get, facts, request.devices);
  if (IsOurs(ValueOf(get, "NCCL_NET")) && settings.nccl_channels != 0) {
    AskForChannels(settings, get, tuner, facts, &request);
  }
  if (facts.version < kPeerChannelsBySpeed && request.devices > 1)
    request.gpu_link = facts.gpus.link;
  return request;
}

void Ask(const NcclRequest& request) {
  TuneForChannels(request.tuned_channels);
  if (!request.warning.empty()) Warn(request.warning);
  if (!request.hint.empty()) InformInit(request.hint);
  std::string said;
  for (const auto& [name, value] : request.variables) {
    (void)::setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
    said += fmt::format("{}{}={}", said.empty() ? "" : ", ", name, value);
  }
  if (said.empty()) return;
  InformInit(fmt::format(
      "set for this process: {}; FERRY_NCCL_CHANNELS=0, on all ranks, leaves NCCL alone", said));
}

std::optional<int> VersionOfNccl(const void* nccl) {
  Dl_info info{};
  if (nccl == nullptr || ::dladdr(nccl, &info) == 0) return std::nullopt;
  // It is loaded already; the main program has no name that dlopen(3) takes.
  void* library = ::dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) library = ::dlopen(nullptr, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return std::nullopt;
  using GetVersion = int(int*);
  // dlsym(3) returns the address of a function as a data pointer.
  auto* const get_version = reinterpret_cast<GetVersion*>(::dlsym(library, "ncclGetVersion"));
  int version = 0;
  const bool known = get_version != nullptr && get_version(&version) == abi::kSuccess;
  (void)::dlclose(library);
  return known ? std::optional(version) : std::nullopt;
}

}  // namespace ferry::nccl_net
