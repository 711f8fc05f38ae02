// Kernel of the store to a paged cache.

#include "ferry/cuda/launch.cuh"
#include "ferry/cuda/prim/grid_order.cuh"
#include "ferry/cuda/prim/trap.cuh"
#include "ferry/kernels/cache_store.cuh"
#include "ferry/kernels/indices.cuh"
#include "ferry/kernels/store_kvcache/store_kvcache_plan.h"
#include "ferry/kernels/tiles.cuh"

namespace ferry::kernels {
namespace {

// Where a token's word goes in one of the caches, if it does.
struct WordPlace {
  bool stored;
  void* cache;
  std::int64_t at;
  float inverse;
};
template <class T, int kWidth, bool kNarrow>
__device__ __forceinline__ void StoreCacheWord(const WordPlace& place,
                                               const Word<T, kWidth>& word) {
  if constexpr (kNarrow) {
    float values[kWidth];
    NumbersOf<T, kWidth>(word, values);
    if (place.stored) StoreNarrow<kWidth>(place.cache, place.at, values, place.inverse);
  } else if constexpr (kWidth == 1) {
    if (place.stored) static_cast<T*>(place.cache)[place.at] = word;
  } else {
    prim::Store16If(place.stored, static_cast<T*>(place.cache) + place.at, word);
  }
}

// A thread's word of k and of v. Both loads are in flight before the first store; they need not
// wait for the slot.
template <class T, int kWidth, bool kNarrow>
__global__ void __launch_bounds__(kTileThreads)
    StoreTokens(const __grid_constant__ StoreKvCachePlan plan) {
  prim::GridDependencySynchronize();
  prim::LetNextGridBegin();
  const TilePlace place = PlaceInTile(plan.tiles, 1);
  if (place.word >= place.end) return;
  const std::int64_t at = std::int64_t{place.word} * kWidth;
  const std::int32_t slot = LoadSlot(plan.caches.slots, place.row);
  const Word<T, kWidth> key =
      LoadWordAhead<T, kWidth>(static_cast<const T*>(plan.k) + place.row * plan.k_token + at);
  const Word<T, kWidth> value =
      LoadWordAhead<T, kWidth>(static_cast<const T*>(plan.v) + place.row * plan.v_token + at);
  prim::IssueLoads();
  const bool known = slot < plan.caches.slot_count;
  if (!known) prim::TrapInDebug();
  const bool stored = slot >= 0 && known;
  const PagedCaches& caches = plan.caches;
  // Slot 0 where nothing is stored, so that the address is valid; the store is predicated.
  const CachePlace to = PlaceOf(caches, stored ? static_cast<std::uint32_t>(slot) : 0);
  const CachePlace in = OffsetsOf(caches, at);
  StoreCacheWord<T, kWidth, kNarrow>({stored, caches.k, to.k + in.k, caches.k_inverse}, key);
  StoreCacheWord<T, kWidth, kNarrow>({stored, caches.v, to.v + in.v, caches.v_inverse}, value);
}

template <class T, int kWidth>
auto ChosenStore(const StoreKvCachePlan& plan) {
  return plan.caches.dtype == DType::kFloat8E4m3 ? StoreTokens<T, kWidth, true>
                                                 : StoreTokens<T, kWidth, false>;
}

}  // namespace

Status LaunchStoreKvCache(const StoreKvCachePlan& plan, cuda::StreamRef stream) {
  constexpr const char* kName = "store_kvcache";
  const cuda::LaunchConfig config{.grid = plan.tiles.blocks,
                                  .block = dim3(plan.tiles.threads_x, plan.tiles.threads_y),
                                  .early = true};
  return WithFloatType(plan.dtype, [&](auto number) {
    using T = decltype(number);
    return cuda::Launch(stream, kName, config,
                        plan.wide ? ChosenStore<T, kPacked<T>>(plan) : ChosenStore<T, 1>(plan),
                        plan);
  });
}

}  // namespace ferry::kernels
