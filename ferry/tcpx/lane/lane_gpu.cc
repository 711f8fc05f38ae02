// Pools in host memory that GPUs read.
#include "ferry/tcpx/lane/lane_gpu.h"

#include <mutex>
#include <utility>
#include <vector>

namespace ferry::net::plugin {
namespace {

struct PinnedPools {
  std::mutex mutex;
  std::vector<cuda::HostRegistration> pins;  // under mutex
};

}  // namespace

Status PinPool(const LaneGpu& gpu, std::byte* pool, std::size_t bytes) {
  // Never destroyed, because the plugin keeps its pool, and lanes may outlive static storage.
  static auto* const all = new PinnedPools;
  const std::lock_guard lock(all->mutex);
  FERRY_TRY_ASSIGN(const cuda::PointerInfo info, gpu.api->Inspect(pool));
  if (info.kind != cuda::MemoryKind::kHost || bytes == 0) return Ok();
  FERRY_TRY_ASSIGN(auto pin, gpu.api->RegisterHost(gpu.ordinal, pool, bytes));
  all->pins.push_back(std::move(pin));
  return Ok();
}

}  // namespace ferry::net::plugin
