#include <type_traits>

#include "ferry/cuda/launch.cuh"
#include "ferry/kernels/cache_store.cuh"
#include "ferry/kernels/store_kvcache/store_kvcache_plan.h"
#include "ferry/kernels/tiles.cuh"
#include "ferry/prim/trap.cuh"

namespace ferry::kernels {
namespace {

// What one access of k or v moves.
template <class T, int kWidth>
using StoredWord = std::conditional_t<kWidth == 1, T, uint4>;

template <class T, int kWidth, bool kNarrow>
__device__ __forceinline__ void StoreWord(void* cache, std::int64_t at,
                                          const StoredWord<T, kWidth>& word, float inverse) {
  if constexpr (kNarrow) {
    float values[kWidth];
    if constexpr (kWidth == 1) {
      values[0] = ToFloat(word);
    } else {
      Unpack<T>(word, values);
    }
    StoreNarrow<kWidth>(cache, at, values, inverse);
  } else if constexpr (kWidth == 1) {
    static_cast<T*>(cache)[at] = word;
  } else {
    prim::Store16(static_cast<T*>(cache) + at, word);
  }
}

template <class T, int kWidth>
__device__ __forceinline__ StoredWord<T, kWidth> LoadWord(const T* from) {
  if constexpr (kWidth == 1) {
    return *from;
  } else {
    return prim::Load16(from);
  }
}

// All of a thread's loads are under way before its first store; they need not wait for the slot.
template <class T, int kWidth, bool kNarrow>
__global__ void __launch_bounds__(kTileThreads)
    StoreTokens(const __grid_constant__ StoreKvCachePlan plan) {
  constexpr int kWords = static_cast<int>(kStoreWords);
  const TilePlace place = PlaceInTile(plan.tiles, kWords);
  if (place.word >= place.end) return;
  const std::int32_t slot = __ldg(plan.caches.slots + place.row);
  const T* const k = static_cast<const T*>(plan.k) + place.row * plan.k_token;
  const T* const v = static_cast<const T*>(plan.v) + place.row * plan.v_token;
  StoredWord<T, kWidth> keys[kWords];
  StoredWord<T, kWidth> values[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const std::uint32_t word = place.word + i * blockDim.x;
    if (word < place.end) {
      keys[i] = LoadWord<T, kWidth>(k + std::int64_t{word} * kWidth);
      values[i] = LoadWord<T, kWidth>(v + std::int64_t{word} * kWidth);
    }
  }
  if (slot < 0) return;
  if (slot >= plan.caches.slot_count) return prim::TrapInDebug();
  const CachePlace to = PlaceOf(plan.caches, static_cast<std::uint32_t>(slot));
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const std::uint32_t word = place.word + i * blockDim.x;
    if (word < place.end) {
      const std::int64_t at = std::int64_t{word} * kWidth;
      StoreWord<T, kWidth, kNarrow>(plan.caches.k, to.k + at, keys[i], plan.caches.k_inverse);
      StoreWord<T, kWidth, kNarrow>(plan.caches.v, to.v + at, values[i], plan.caches.v_inverse);
    }
  }
}

template <class T, int kWidth>
auto ChosenStore(bool narrow) {
  return narrow ? StoreTokens<T, kWidth, true> : StoreTokens<T, kWidth, false>;
}

}  // namespace

Status LaunchStoreKvCache(const StoreKvCachePlan& plan, cuda::StreamRef stream) {
  const cuda::LaunchConfig config{.grid = plan.tiles.blocks,
                                  .block = dim3(plan.tiles.threads_x, plan.tiles.threads_y)};
  const bool narrow = plan.caches.dtype == DType::kFloat8E4m3;
  return WithFloatType(plan.dtype, [&](auto number) {
    using T = decltype(number);
    return cuda::Launch(stream, "store_kvcache", config,
                        plan.wide ? ChosenStore<T, kPacked<T>>(narrow) : ChosenStore<T, 1>(narrow),
                        plan);
  });
}

}  // namespace ferry::kernels
