// The tuner that keeps short collectives to few channels.
#include "plugins/nccl/setup/tuner.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>

#include "plugins/nccl/report.h"

namespace ferry::nccl_net {
namespace {

namespace abi = net::nccl_abi;

// All-reduce on two H200: 64 KiB took 63 to 74 us over two channels and 205 to 240 over eight,
// probably because each message costs the proxy's thread as much as a larger one; 1 MiB took 238
// and 588; 4 MiB 535 and 543.
constexpr std::size_t kLongBytes = std::size_t{4} << 20;
// From this many bytes per rank on, the number of channels that was asked for suits NCCL, which
// creates two channels for each network device. Below it NCCL itself takes fewer, depending on the
// number of ranks. All-reduce of 4 MiB between two ranks took 2 ms over sixteen channels, and 0.5
// ms over eight.
constexpr std::size_t kLongForEach = std::size_t{2} << 20;
// Below this many bytes per rank NCCL itself chooses a single channel.
constexpr std::size_t kTinyBytes = std::size_t{8} << 10;
// Bytes per rank from which LL is withdrawn: the protocol LL sends twice the bytes in messages of
// 64 KiB, all of them through the proxy's thread. All-reduce of 256 KiB between two ranks took 286
// us with it, 198 to 216 us without.
constexpr std::size_t kLowLatencyBytes = std::size_t{128} << 10;

// NCCL's numbers for these (src/include/nccl_common.h of NCCL).
constexpr int kAllGather = 2;
constexpr int kRing = 1;
constexpr int kPat = 6;
constexpr int kLowLatency = 0;
constexpr int kSimple = 2;
constexpr float kNever = -1;

std::atomic<int> long_channels{0};  // 0: the tuner does nothing

struct Tuned {
  std::size_t ranks = 0;
  std::size_t nodes = 0;
  int channels = 0;
};

int InitTuner(std::size_t ranks, std::size_t nodes, abi::Logger /*logger*/, void** context) {
  *context = nullptr;
  const int channels = long_channels.load();
  if (nodes < 2 || channels == 0) return abi::kSuccess;
  try {
    *context = std::make_unique<Tuned>(Tuned{ranks, nodes, channels}).release();
    return abi::kSuccess;
  } catch (const std::exception& error) {
    Warn(error.what());
    return abi::kSystemError;
  }
}

// The cost of a combination; null where there is none.
float* CostOf(float* costs, int algorithms, int protocols, int algorithm, int protocol) {
  if (costs == nullptr || algorithm >= algorithms || protocol >= protocols) return nullptr;
  return costs + algorithm * protocols + protocol;
}

// Withdraws a choice only if another one is left.
void TakeBack(const Tuned& tuned, std::size_t bytes, float* costs, int algorithms, int protocols) {
  const auto cost = [&](int algorithm, int protocol) {
    return CostOf(costs, algorithms, protocols, algorithm, protocol);
  };
  for (int algorithm = 0; algorithm < algorithms; ++algorithm) {
    const float* const simple = cost(algorithm, kSimple);
    float* const low_latency = cost(algorithm, kLowLatency);
    const bool has_other = simple != nullptr && *simple >= 0;
    if (has_other && bytes >= kLowLatencyBytes * tuned.ranks) *low_latency = kNever;
  }
  // Between two nodes a tree has the same number of steps as a ring. All-gather of 1 MiB took 262
  // to 290 us with it, 141 us with a ring.
  const float* const ring = cost(kRing, kSimple);
  if (tuned.nodes > 2 || ring == nullptr || *ring < 0) return;
  for (int protocol = 0; protocol < protocols; ++protocol) {
    if (float* const pat = cost(kPat, protocol); pat != nullptr) *pat = kNever;
  }
}

// The number of channels for a long collective; 0 leaves it to NCCL. From 2.29 on NCCL uses the
// number for an all-gather also for grouped broadcasts, and does not check it against the channels
// of the communicator: a communicator split from another may have fewer, and NCCL would read beyond
// the end of its array. For long all-gathers NCCL uses all channels by itself.
int LongChannels(const Tuned& tuned, int collective) {
  return collective == kAllGather ? 0 : tuned.channels;
}

// NOLINTNEXTLINE(readability-function-size): NCCL's parameters
int Tune(void* context, int collective, std::size_t bytes, int /*operations*/, float* costs,
         int algorithms, int protocols, int /*registered*/, int* channels) {
  const auto* const tuned = static_cast<const Tuned*>(context);
  if (tuned == nullptr) return abi::kSuccess;
  if (bytes >= std::max(kLongBytes, kLongForEach * tuned->ranks)) {
    if (const int all = LongChannels(*tuned, collective); all != 0) *channels = all;
  } else if (bytes < kLongBytes && bytes >= kTinyBytes * tuned->ranks) {
    *channels = kFewChannels;
  }
  TakeBack(*tuned, bytes, costs, algorithms, protocols);
  return abi::kSuccess;
}

int DestroyTuner(void* context) {
  const std::unique_ptr<Tuned> ended(static_cast<Tuned*>(context));
  return abi::kSuccess;
}

constexpr const char* kTunerName = "Ferry";

}  // namespace

void TuneForChannels(int channels) noexcept { long_channels.store(channels); }

}  // namespace ferry::nccl_net

extern "C" {
// NOLINTNEXTLINE(readability-identifier-naming): NCCL's name
__attribute__((visibility("default"))) ferry::nccl_net::TunerV4 ncclTunerPlugin_v4 = {
    .name = ferry::nccl_net::kTunerName,
    .init = ferry::nccl_net::InitTuner,
    .get_coll_info = ferry::nccl_net::Tune,
    .destroy = ferry::nccl_net::DestroyTuner,
};
}
