// CPU form of the store to a paged cache.

#include "ferry/kernels/number.h"
#include "ferry/kernels/store_kvcache/store_kvcache.h"
#include "ferry/kernels/store_kvcache/store_kvcache_plan.h"

namespace ferry::kernels {

Status StoreKvCacheCpu(const StoreKvCacheArgs& args) {
  FERRY_TRY_ASSIGN(const StoreKvCachePlan plan, PlanStoreKvCache(args));
  const PagedCaches& caches = plan.caches;
  FERRY_TRY(CheckSlots("store_kvcache", caches, plan.tokens));
  for (std::uint32_t token = 0; token < plan.tokens; ++token) {
    const std::int64_t slot = caches.slots[token];
    if (slot < 0) continue;
    const CachePlace place = PlaceOf(caches, static_cast<std::uint32_t>(slot));
    for (std::int64_t i = 0; i < plan.cols; ++i) {
      const float k = ReadFloat(plan.k, plan.dtype, token * plan.k_token + i);
      const float v = ReadFloat(plan.v, plan.dtype, token * plan.v_token + i);
      const CachePlace in = OffsetsOf(caches, i);
      StoreInCache(caches.k, caches.dtype, place.k + in.k, k, caches.k_inverse);
      StoreInCache(caches.v, caches.dtype, place.v + in.v, v, caches.v_inverse);
    }
  }
  return Ok();
}

}  // namespace ferry::kernels
