#pragma once
#include "ferry/core/result.h"
#include "ferry/kernels/paged_cache.h"
#include "ferry/kernels/store_kvcache/store_kvcache.h"
#include "ferry/kernels/tiles.h"

// What is decided on the host before a launch; goes to the kernel as it is.
namespace ferry::kernels {

struct StoreKvCachePlan {
  const void* k = nullptr;
  const void* v = nullptr;
  std::int64_t k_token = 0;  // strides, in elements
  std::int64_t v_token = 0;
  std::int64_t cols = 0;  // elements of a token
  PagedCaches caches;
  RowTiles tiles;  // its rows are tokens
  DType dtype = DType::kFloat32;
  bool wide = false;  // words of 16 bytes of k and v, otherwise elements
};
// Words of k, and as many of v, for each thread.
inline constexpr std::uint32_t kStoreWords = 2;

// Errors: as StoreKvCache(), but for those of slots.
Result<StoreKvCachePlan> PlanStoreKvCache(const StoreKvCacheArgs& args);

}  // namespace ferry::kernels
