// Chooses the NCCL variables that this plugin sets.
#include "plugins/nccl/nccl_request.h"

#include <dlfcn.h>
#include <fmt/core.h>
#include <strings.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "plugins/nccl/report.h"
#include "plugins/nccl/setup/set_variables.h"
#include "plugins/nccl/setup/tuner.h"
#include "plugins/nccl/table/plugin.h"

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
constexpr int kChannelGigabytesOfNccl = 14;  // by itself
constexpr int kChannelsBefore229 = 2;        // that NCCL creates by itself, at least
constexpr int kMaxDevices = 32;
constexpr int kMaxChannels = 64;  // of NCCL
// All devices but one must not fill a link of 12 GB/s (PCIe 3, x16): NCCL creates no channels for
// devices beyond those that fill it, and the links of two nodes may differ.
constexpr int kMaxMegabitsOfOthers = 80'000;

// NCCL variables that bound the number of channels, which a minimum set here could exceed.
constexpr std::array kBounds = {"NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS", "NCCL_MIN_NRINGS",
                                "NCCL_MAX_CTAS", "NCCL_MIN_CTAS"};

std::string_view ValueOf(const Config::Getter& get, const char* name) {
  const char* const text = get(name);
  return text == nullptr ? std::string_view() : text;
}

// As NCCL reads it, in any base. 0 where the variable is not set, or not a number.
int NumberIn(std::string_view text) {
  constexpr long long kMax = std::numeric_limits<int>::max();
  const long long number = std::strtoll(std::string(text).c_str(), nullptr, 0);
  return static_cast<int>(std::clamp(number, -kMax, kMax));
}

// NCCL rounds numbers of channels up to powers of two.
int RoundedUp(int channels) {
  return static_cast<int>(
      std::bit_ceil(static_cast<unsigned>(std::clamp(channels, 1, kMaxChannels))));
}

// The channels between two ranks of different machines that NCCL will probably create, by its
// variables and what `request` sets of them.
int PeerChannelsOf(const NcclRequest& request, const Config::Getter& get, const NcclFacts& facts) {
  const auto number = [&](const char* name) {
    for (const auto& [each, value] : request.variables) {
      if (each == name) return NumberIn(value);
    }
    return NumberIn(ValueOf(get, name));
  };
  const int devices = static_cast<int>(request.devices);
  int channels = number(kPeerChannels);
  if (channels <= 0 && facts.version >= kPeerChannelsBySpeed) {
    const int set = number(kChannelSpeed);
    const int gigabytes = set > 0 ? set : kChannelGigabytesOfNccl;
    channels = std::max(devices, (facts.megabits / 8000 - 1) / gigabytes + 1);
  } else if (channels <= 0) {
    channels = std::max(devices, kChannelsBefore229);
  }
  // Collectives have the minimum, or two for each device; send and receive have no more.
  if (const int least = number(kMinChannels); least > 0) {
    channels = std::min(channels, std::max(least, 2 * devices));
  }
  for (const char* bound : {"NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS"}) {
    // NCCL takes less than 1 for 1.
    if (!ValueOf(get, bound).empty()) channels = std::min(channels, std::max(number(bound), 1));
  }
  if (const int most = number("NCCL_MAX_CTAS"); most > 0) channels = std::min(channels, most);
  return RoundedUp(channels);
}

// NCCL 2.28 creates more channels between two ranks for more devices only.
void ShowDevices(int channels, const NcclFacts& facts, NcclRequest* request) {
  if (channels <= kChannelsBefore229) return;
  const bool alone = facts.local_ranks == 1 || (facts.local_ranks == 0 && facts.gpus.count == 1);
  if (!alone || facts.gpus.link != GpuLink::kDirect) {
    request->hint = fmt::format(
        "NCCL 2.28 creates two channels between two ranks here; for more, set "
        "NCCL_NCHANNELS_PER_NET_PEER={} or NCCL_ENV_PLUGIN to the path of libnccl-net-ferry.so, on "
        "all ranks",
        channels);
    return;
  }
  // The fewest that NCCL rounds up to as many channels.
  request->devices = static_cast<std::size_t>(std::min(RoundedUp(channels) / 2 + 1, kMaxDevices));
}

// Asks for channels of send and receive in the way that this version of NCCL has.
void AskForPeerChannels(int channels, const Config& settings, const Config::Getter& get,
                        const NcclFacts& facts, NcclRequest* request) {
  if (!ValueOf(get, kPeerChannels).empty()) return;
  if (facts.version < kPeerChannelsReadFirst) {
    request->variables.emplace_back(kPeerChannels, std::to_string(channels));
  } else if (facts.version < kPeerChannelsBySpeed) {
    if (!settings.IsSet("nccl_devices")) ShowDevices(channels, facts, request);
  } else if (ValueOf(get, kChannelSpeed).empty()) {
    request->variables.emplace_back(kChannelSpeed, std::to_string(kChannelGigabytes));
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
  if (channels >= kFewChannels && (set.empty() || NumberIn(set) == channels)) {
    request->tuned_channels = channels;
  }
  AskForPeerChannels(channels, settings, get, facts, request);
}

}  // namespace

bool AllowsThisPlugin(std::string_view nccl_net) {
  return nccl_net.empty() || ::strcasecmp(std::string(nccl_net).c_str(), kPluginName) == 0;
}

NcclRequest RequestOf(const Config& settings, const Config::Getter& get, const NcclTuner& tuner,
                      const NcclFacts& facts) {
  NcclRequest request;
  request.devices = static_cast<std::size_t>(settings.nccl_devices);
  if (AllowsThisPlugin(ValueOf(get, "NCCL_NET")) && settings.nccl_channels != 0) {
    AskForChannels(settings, get, tuner, facts, &request);
  }
  request.peer_channels = PeerChannelsOf(request, get, facts);
  if (facts.version < kPeerChannelsBySpeed && request.devices > 1) {
    request.gpu_link = facts.gpus.link;
    request.max_megabits = kMaxMegabitsOfOthers / (static_cast<int>(request.devices) - 1);
  }
  return request;
}

void Ask(const NcclRequest& request) {
  TuneForChannels(request.tuned_channels);
  if (!request.warning.empty()) Warn(request.warning);
  if (!request.hint.empty()) InformInit(request.hint);
  SetVariables(request.variables);
  std::string said;
  for (const auto& [name, value] : request.variables) {
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
