// Reads the plugin's settings and sizes its threads.
#include "bindings/nccl_net/settings.h"

#include <sys/resource.h>

#include <algorithm>
#include <thread>

#include "bindings/nccl_net/wire.h"
#include "ferry/core/log.h"
#include "ferry/core/units.h"

namespace ferry::nccl_net {
namespace {

constexpr std::uint64_t kPieceBytes = 128 * kKiB;
constexpr unsigned kManyCores = 8;
constexpr std::size_t kMaxSwiftLoops = 8;  // machines rarely have more GPUs
// From this many cores on workers poll. All-reduce of 1 MiB on two H200 with 32 cores took 238 us
// without polling workers and 195 us with them; send and receive 282 and 187 us.
constexpr unsigned kCoresToSpin = 16;
constexpr std::chrono::microseconds kSpin{300};
// All ranks connect to each other at once, with several lanes each, and none may be turned away;
// but the process needs most of its descriptors itself.
std::uint32_t MaxPendingPeers(std::uint32_t at_least) {
  constexpr rlim_t kMax = 4096;
  rlimit descriptors{};
  if (::getrlimit(RLIMIT_NOFILE, &descriptors) != 0) return at_least;
  return std::max(at_least, static_cast<std::uint32_t>(std::min(kMax, descriptors.rlim_cur / 4)));
}

}  // namespace

std::string InterfacesOf(std::string_view socket_ifname) {
  std::string list;
  if (socket_ifname.substr(0, 1) == "^") {
    list += '^';
    socket_ifname.remove_prefix(1);
  }
  const bool exact = socket_ifname.substr(0, 1) == "=";
  if (exact) socket_ifname.remove_prefix(1);
  bool first = true;
  while (!socket_ifname.empty()) {
    const std::size_t comma = std::min(socket_ifname.find(','), socket_ifname.size());
    // NCCL allows a port after a name; it has no meaning here.
    const std::string_view name = socket_ifname.substr(0, std::min(comma, socket_ifname.find(':')));
    if (!name.empty()) {
      if (!first) list += ',';
      list += name;
      if (!exact) list += '*';
      first = false;
    }
    socket_ifname.remove_prefix(std::min(comma + 1, socket_ifname.size()));
  }
  return first ? std::string() : list;
}

std::uint64_t RaiseDescriptorLimit() {
  constexpr rlim_t kEnough = 65536;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = std::max(before, std::min(limit.rlim_max, kEnough));
  if (limit.rlim_cur == before || ::setrlimit(RLIMIT_NOFILE, &limit) != 0) return before;
  return limit.rlim_cur;
}

Result<Settings> LoadSettings(const Config::Getter& get) {
  Settings settings;
  FERRY_TRY_ASSIGN(settings.config, Config::FromEnvironment(get));
  Config& config = settings.config;
  if (const char* names = get("NCCL_SOCKET_IFNAME");
      names != nullptr && !config.IsSet("interfaces")) {
    FERRY_TRY(config.Set("interfaces", InterfacesOf(names), "NCCL_SOCKET_IFNAME"));
  }
  if (!config.IsSet("max_pending_handshakes")) {
    config.max_pending_handshakes = MaxPendingPeers(config.max_pending_handshakes);
  }
  const unsigned cores = std::max(std::thread::hardware_concurrency(), 1U);
  settings.bulk_lanes = config.lanes > 0      ? static_cast<std::size_t>(config.lanes)
                        : cores >= kManyCores ? 4
                                              : 2;
  settings.workers = config.workers > 0 ? static_cast<std::size_t>(config.workers)
                                        : std::clamp(cores / 2, 2U, 16U);
  settings.swift_loops = std::clamp<std::size_t>(cores / 4, 2, kMaxSwiftLoops);
  if (!config.IsSet("spin") && cores >= kCoresToSpin) config.spin = kSpin;
  // With 4, 8 and 16 polling workers, all-reduce of 4 MiB took 535, 510 and 467 us (one start
  // each), of 64 MiB 3.6, 3.8 and 3.6 ms; but other threads need the cores too.
  settings.spinners = static_cast<int>(std::clamp(cores / 4, 1U, 8U));
  settings.small_bytes =
      config.IsSet("eager_bytes") ? std::min(config.eager_bytes, kMaxEarlyBytes) : kMaxEarlyBytes;
  settings.piece_bytes = config.IsSet("slice_bytes") ? config.slice_bytes : kPieceBytes;
  return settings;
}

}  // namespace ferry::nccl_net
