#include "bindings/nccl_net/tuner.h"

#include <atomic>
#include <exception>
#include <memory>

#include "bindings/nccl_net/report.h"

namespace ferry::nccl_net {
namespace {

namespace abi = net::plugin::abi;

// All-reduce on two H200: of 64 KiB 63 to 74 us over two channels and 205 to 240 over eight, of
// which each message likely costs the proxy's thread as much as a larger one; of 1 MiB 238 and 588;
// of 4 MiB 535 and 543.
constexpr std::size_t kLongBytes = std::size_t{4} << 20;
// Of shorter ones, for each rank, NCCL chooses a single channel by itself.
constexpr std::size_t kTinyBytes = std::size_t{8} << 10;

std::atomic<bool> limits_short{false};

struct Limited {
  std::size_t from = 0;  // bytes, up to kLongBytes
};

int InitTuner(std::size_t ranks, std::size_t nodes, abi::Logger /*logger*/, void** context) {
  *context = nullptr;
  if (nodes < 2 || !limits_short.load()) return abi::kSuccess;
  try {
    *context = std::make_unique<Limited>(Limited{kTinyBytes * ranks}).release();
    return abi::kSuccess;
  } catch (const std::exception& error) {
    Warn(error.what());
    return abi::kSystemError;
  }
}

int LimitChannels(void* context, int /*collective*/, std::size_t bytes, int /*operations*/,
                  float** /*costs*/, int /*algorithms*/, int /*protocols*/, int /*registered*/,
                  int* channels) {
  const auto* const limited = static_cast<const Limited*>(context);
  if (limited != nullptr && bytes >= limited->from && bytes < kLongBytes) *channels = kFewChannels;
  return abi::kSuccess;
}

int DestroyTuner(void* context) {
  const std::unique_ptr<Limited> ended(static_cast<Limited*>(context));
  return abi::kSuccess;
}

constexpr const char* kTunerName = "Ferry";

}  // namespace

void LimitShortCollectives() noexcept { limits_short.store(true); }

}  // namespace ferry::nccl_net

extern "C" {
// NOLINTNEXTLINE(readability-identifier-naming): NCCL's name
__attribute__((visibility("default"))) ferry::nccl_net::TunerV4 ncclTunerPlugin_v4 = {
    .name = ferry::nccl_net::kTunerName,
    .init = ferry::nccl_net::InitTuner,
    .get_coll_info = ferry::nccl_net::LimitChannels,
    .destroy = ferry::nccl_net::DestroyTuner,
};
}
