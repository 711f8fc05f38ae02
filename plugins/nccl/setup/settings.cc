// Reads the plugin's settings and sizes its threads.
#include "plugins/nccl/setup/settings.h"

#include <fmt/core.h>
#include <sys/resource.h>

#include <algorithm>
#include <string>

#include "ferry/core/log.h"
#include "ferry/core/units.h"
#include "plugins/nccl/wire.h"

namespace ferry::nccl_net {
namespace {

constexpr std::uint64_t kPieceBytes = 128 * kKiB;
// With eight channels two lanes each: on two H200, 64 MiB, all-reduce took 3.98 ms with two, 4.0
// with four and 4.13 to 4.77 with one; send and receive 4.79, 4.19, and 4.81 to 5.69 ms.
constexpr std::size_t kBulkLanesOfPeer = 16;
constexpr std::size_t kMaxWorkers = 16;
constexpr std::size_t kMaxSwiftLoops = 8;  // machines rarely have more GPUs
// From this many cores on workers poll. All-reduce of 1 MiB on two H200 with 32 cores took 238 us
// without polling workers and 195 us with them; send and receive 282 and 187 us.
constexpr unsigned kCoresToSpin = 16;
constexpr std::chrono::microseconds kSpin{300};
constexpr int kChannelsByDefault = 2;  // that NCCL creates between two ranks
// All ranks connect to each other at once, with several lanes each, and none may be turned away;
// but the process needs most of its descriptors itself.
std::uint32_t MaxPendingPeers(std::uint32_t at_least) {
  constexpr rlim_t kMax = 4096;
  rlimit descriptors{};
  if (::getrlimit(RLIMIT_NOFILE, &descriptors) != 0) return at_least;
  return std::max(at_least, static_cast<std::uint32_t>(std::min(kMax, descriptors.rlim_cur / 4)));
}

// Which addresses peers are told, by our setting or else by NCCL's.
Status LoadSelection(const Config::Getter& get, Settings* settings) {
  Config& config = settings->config;
  std::string& selection = settings->selection;
  selection = fmt::format("FERRY_INTERFACES={}", config.interfaces);
  if (const char* names = get("NCCL_SOCKET_IFNAME");
      names != nullptr && !config.IsSet("interfaces")) {
    selection = fmt::format("NCCL_SOCKET_IFNAME={}", names);
    auto set = config.Set("interfaces", net::InterfacesOfNccl(names), "NCCL_SOCKET_IFNAME");
    if (!set) {
      return Error(set.error().code(), fmt::format("{}: {}", selection, set.error().message()));
    }
  }
  const char* const family = get("NCCL_SOCKET_FAMILY");
  settings->family = net::FamilyOfNccl(family);
  if (settings->family == net::IpFamily::kAny) return Ok();
  const std::string more = fmt::format("NCCL_SOCKET_FAMILY={}", family);
  selection = config.interfaces.empty() ? more : fmt::format("{} with {}", selection, more);
  return Ok();
}

}  // namespace

std::uint64_t RaiseDescriptorLimit() {
  constexpr rlim_t kEnough = 65536;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = std::max(before, std::min(limit.rlim_max, kEnough));
  if (limit.rlim_cur == before || ::setrlimit(RLIMIT_NOFILE, &limit) != 0) return before;
  return limit.rlim_cur;
}

std::size_t BulkLanes(int channels, std::size_t workers) {
  const std::size_t lanes = kBulkLanesOfPeer / static_cast<std::size_t>(std::max(channels, 1));
  return std::clamp<std::size_t>(lanes, 1, std::max<std::size_t>(workers, 2));
}

Result<Settings> LoadSettings(const Config::Getter& get, unsigned cores) {
  Settings settings;
  FERRY_TRY_ASSIGN(settings.config, Config::FromEnvironment(get));
  Config& config = settings.config;
  FERRY_TRY(LoadSelection(get, &settings));
  if (!config.IsSet("max_pending_handshakes")) {
    config.max_pending_handshakes = MaxPendingPeers(config.max_pending_handshakes);
  }
  // With 16 cores, 12 workers were faster than 16 at nearly all sizes: NCCL's threads need the
  // other cores, and a worker that may not poll is slow to wake.
  const bool polls = cores >= kCoresToSpin;
  const std::size_t share = std::max<std::size_t>(polls ? cores * 3 / 4 : cores / 2, 2);
  settings.workers =
      config.workers > 0 ? static_cast<std::size_t>(config.workers) : std::min(share, kMaxWorkers);
  settings.bulk_lanes = config.lanes > 0 ? static_cast<std::size_t>(config.lanes)
                                         : BulkLanes(kChannelsByDefault, settings.workers);
  settings.swift_loops = std::clamp<std::size_t>(cores / 4, 2, kMaxSwiftLoops);
  if (!config.IsSet("spin") && polls) config.spin = kSpin;
  settings.spinners = static_cast<int>(polls ? std::min(share, settings.workers)
                                             : std::clamp<std::size_t>(cores / 4, 1, 8));
  settings.small_bytes =
      config.IsSet("eager_bytes") ? std::min(config.eager_bytes, kMaxEarlyBytes) : kMaxEarlyBytes;
  settings.piece_bytes = config.IsSet("slice_bytes") ? config.slice_bytes : kPieceBytes;
  return settings;
}

}  // namespace ferry::nccl_net
