// Launch plan of the cache store: computed on the host, passed to the kernel by value.
#pragma once
#include "ferry/core/result.h"
#include "ferry/kernels/paged_cache.h"
#include "ferry/kernels/store_kvcache/store_kvcache.h"
#include "ferry/kernels/tiles.h"

namespace ferry::kernels {

struct StoreKvCachePlan {
  const void* k = nullptr;
  const void* v = nullptr;
  std::int64_t k_token = 0;  // strides, in elements
  std::int64_t v_token = 0;
  std::int64_t cols = 0;     // elements of a token
  std::uint32_t tokens = 0;  // 0: nothing is to be done
  PagedCaches caches;
  RowTiles tiles;  // its rows are tokens
  DType dtype = DType::kFloat32;
  bool wide = false;  // words of 16 bytes of k and v, otherwise elements
};

// Errors: as StoreKvCache(), but for those of slots.
Result<StoreKvCachePlan> PlanStoreKvCache(const StoreKvCacheArgs& args);

}  // namespace ferry::kernels
