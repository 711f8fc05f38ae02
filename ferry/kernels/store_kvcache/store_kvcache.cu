#include <cstddef>

#include "ferry/cuda/launch.cuh"
#include "ferry/kernels/cache_store.cuh"
#include "ferry/kernels/store_kvcache/store_kvcache_plan.h"
#include "ferry/kernels/tiles.cuh"
#include "ferry/prim/cp_async.cuh"
#include "ferry/prim/grid_order.cuh"
#include "ferry/prim/mbarrier.cuh"
#include "ferry/prim/tma.cuh"
#include "ferry/prim/trap.cuh"

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

// All of a thread's loads are under way before its first store; they need not wait for the slot.
template <class T, int kWidth, bool kNarrow, int kWords>
__global__ void __launch_bounds__(kTileThreads)
    StoreTokens(const __grid_constant__ StoreKvCachePlan plan) {
  prim::WaitForGridsBefore();
  prim::LetNextGridBegin();
  const TilePlace place = PlaceInTile(plan.tiles, kWords);
  if (place.word >= place.end) return;
  const std::int32_t slot = prim::LoadSharedAhead(plan.caches.slots + place.row);
  const T* const k = static_cast<const T*>(plan.k) + place.row * plan.k_token;
  const T* const v = static_cast<const T*>(plan.v) + place.row * plan.v_token;
  Word<T, kWidth> keys[kWords];
  Word<T, kWidth> values[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const std::uint32_t word = place.word + i * blockDim.x;
    if (word < place.end) {
      keys[i] = LoadWordAhead<T, kWidth>(k + std::int64_t{word} * kWidth);
      values[i] = LoadWordAhead<T, kWidth>(v + std::int64_t{word} * kWidth);
    }
  }
  prim::IssueLoads();
  const bool known = slot < plan.caches.slot_count;
  if (!known) prim::TrapInDebug();
  const bool stored = slot >= 0 && known;
  const CachePlace to = PlaceOf(plan.caches, stored ? static_cast<std::uint32_t>(slot) : 0);
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const std::uint32_t word = place.word + i * blockDim.x;
    if (word < place.end) {
      const std::int64_t at = std::int64_t{word} * kWidth;
      const PagedCaches& caches = plan.caches;
      StoreCacheWord<T, kWidth, kNarrow>({stored, caches.k, to.k + at, caches.k_inverse}, keys[i]);
      StoreCacheWord<T, kWidth, kNarrow>({stored, caches.v, to.v + at, caches.v_inverse},
                                         values[i]);
    }
  }
}

// A token's k and v, on their way through one slot of a warp's ring.
struct TokenCopy {
  const std::byte* k;
  const std::byte* v;
  std::int32_t slot;  // in the caches; negative: there is no such token, or it is not stored
};
[[maybe_unused]] __device__ __forceinline__ TokenCopy CopyOf(const StoreKvCachePlan& plan,
                                                             std::uint64_t token,
                                                             std::uint32_t element) {
  if (token >= plan.tokens) return {nullptr, nullptr, -1};
  return {static_cast<const std::byte*>(plan.k) + token * plan.k_token * element,
          static_cast<const std::byte*>(plan.v) + token * plan.v_token * element,
          prim::LoadSharedAhead(plan.caches.slots + token)};
}

// Every token is loaded, be it stored or not, so that loads need not wait for slots. One lane of a
// warp does all that its tokens need; the copy engine does the rest, and no registers are held.
__global__ void __launch_bounds__(kStoreWarps * 32)
    CopyTokens(const __grid_constant__ StoreKvCachePlan plan, std::uint32_t element) {
#if __CUDA_ARCH__ >= 900
  constexpr int kSlots = static_cast<int>(kStoreSlots);
  extern __shared__ __align__(128) std::byte buffers[];
  __shared__ std::uint64_t barriers[kStoreWarps][kSlots];
  if (threadIdx.x % 32 != 0) return;
  const std::uint32_t warp = threadIdx.x / 32;
  const auto bytes = static_cast<std::uint32_t>(plan.cols) * element;
  const std::uint32_t buffer = prim::SharedAddress(buffers) + warp * kSlots * 2 * bytes;
  const std::uint32_t barrier = prim::SharedAddress(barriers[warp]);
#pragma unroll
  for (int i = 0; i < kSlots; ++i) prim::InitBarrier(barrier + i * 8, 1);
  prim::PublishBarriers();
  prim::WaitForGridsBefore();
  prim::LetNextGridBegin();
  const std::uint64_t step = std::uint64_t{gridDim.x} * kStoreWarps;
  std::uint64_t token = std::uint64_t{blockIdx.x} * kStoreWarps + warp;
  TokenCopy copies[kSlots];
  const auto fetch = [&](int i, std::uint64_t which) {
    copies[i] = CopyOf(plan, which, element);
    if (copies[i].k == nullptr) return;
    prim::ArriveAndExpect(barrier + i * 8, 2 * bytes);
    prim::LoadBytes(buffer + i * 2 * bytes, copies[i].k, bytes, barrier + i * 8);
    prim::LoadBytes(buffer + (i * 2 + 1) * bytes, copies[i].v, bytes, barrier + i * 8);
  };
#pragma unroll
  for (int i = 0; i + 1 < kSlots; ++i) fetch(i, token + i * step);
  for (std::uint32_t parity = 0; token < plan.tokens; parity ^= 1) {
#pragma unroll
    for (int i = 0; i < kSlots; ++i, token += step) {
      if (copies[i].k == nullptr) break;
      prim::WaitForPhase(barrier + i * 8, parity);
      const std::int32_t slot = copies[i].slot;
      if (slot >= 0 && slot < plan.caches.slot_count) {
        const CachePlace to = PlaceOf(plan.caches, static_cast<std::uint32_t>(slot));
        prim::StoreBytes(static_cast<std::byte*>(plan.caches.k) + to.k * element,
                         buffer + i * 2 * bytes, bytes);
        prim::StoreBytes(static_cast<std::byte*>(plan.caches.v) + to.v * element,
                         buffer + (i * 2 + 1) * bytes, bytes);
      } else if (slot >= 0) {
        prim::TrapInDebug();
      }
      prim::EndStoreGroup();
      // The slot before this one is free when all stores but the last have been read.
      prim::WaitForStoresToRead<1>();
      fetch((i + kSlots - 1) % kSlots, token + (kSlots - 1) * step);
    }
  }
  prim::WaitForStoresToRead<0>();
#endif
}

template <class T, int kWidth, bool kNarrow>
auto ChosenWords(StoreForm form) {
  switch (form) {
    case StoreForm::kOneWord: return StoreTokens<T, kWidth, kNarrow, 1>;
    case StoreForm::kFourWords: return StoreTokens<T, kWidth, kNarrow, 4>;
    default: return StoreTokens<T, kWidth, kNarrow, 2>;
  }
}
template <class T, int kWidth>
auto ChosenStore(const StoreKvCachePlan& plan) {
  return plan.caches.dtype == DType::kFloat8E4m3 ? ChosenWords<T, kWidth, true>(plan.form)
                                                 : ChosenWords<T, kWidth, false>(plan.form);
}

}  // namespace

Status LaunchStoreKvCache(const StoreKvCachePlan& plan, cuda::StreamRef stream) {
  constexpr const char* kName = "store_kvcache";
  if (plan.form == StoreForm::kEngine) {
    const auto element = static_cast<std::uint32_t>(SizeOf(plan.dtype));
    const std::size_t token = 2 * static_cast<std::size_t>(plan.cols) * element;
    return cuda::Launch(stream, kName,
                        {.grid = plan.blocks,
                         .block = kStoreWarps * 32,
                         .shared_bytes = kStoreWarps * kStoreSlots * token,
                         .early = plan.early},
                        CopyTokens, plan, element);
  }
  const cuda::LaunchConfig config{.grid = plan.tiles.blocks,
                                  .block = dim3(plan.tiles.threads_x, plan.tiles.threads_y),
                                  .early = plan.early};
  return WithFloatType(plan.dtype, [&](auto number) {
    using T = decltype(number);
    return cuda::Launch(stream, kName, config,
                        plan.wide ? ChosenStore<T, kPacked<T>>(plan) : ChosenStore<T, 1>(plan),
                        plan);
  });
}

}  // namespace ferry::kernels
