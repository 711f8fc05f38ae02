#include "ferry/cuda/launch.cuh"
#include "ferry/kernels/cache_store.cuh"
#include "ferry/kernels/device_number.cuh"
#include "ferry/kernels/qk_norm_rope_store/qk_norm_rope_store_plan.h"
#include "ferry/kernels/rotation.h"
#include "ferry/prim/reduce.cuh"
#include "ferry/prim/trap.cuh"

namespace ferry::kernels {
namespace {

using QkPlan = QkNormRopeStorePlan;

// The token's place in the caches, where it has one.
struct TokenPlace {
  bool stored;
  CachePlace at;
};
__device__ __forceinline__ TokenPlace PlaceOfToken(const QkPlan& plan, std::uint32_t token) {
  if (plan.caches.k == nullptr) return {};
  const std::int32_t slot = __ldg(plan.caches.slots + token);
  if (slot < 0) return {};
  if (slot >= plan.caches.slot_count) {
    prim::TrapInDebug();
    return {};
  }
  return {true, PlaceOf(plan.caches, static_cast<std::uint32_t>(slot))};
}

// Where a head of the token goes: to `out`, if any, and to `cache`, if any.
template <class T>
struct HeadTarget {
  const T* weight;  // null: v, which is only stored
  T* out;
  void* cache;
  std::int64_t cache_at;
  float inverse;
};
template <class T>
__device__ __forceinline__ HeadTarget<T> TargetOf(const QkPlan& plan, std::uint32_t token,
                                                  std::uint32_t head, const TokenPlace& place) {
  HeadTarget<T> target{};
  const auto out = [token](const HeadsOut& heads, std::uint32_t index) {
    return static_cast<T*>(heads.data) + token * heads.token + index * heads.head;
  };
  if (head < plan.q_heads) {
    target.weight = static_cast<const T*>(plan.q_weight);
    target.out = out(plan.q_out, head);
    return target;
  }
  const bool of_k = head < plan.q_heads + plan.kv_heads;
  const std::uint32_t index = head - plan.q_heads - (of_k ? 0 : plan.kv_heads);
  if (of_k) {
    target.weight = static_cast<const T*>(plan.k_weight);
    if (plan.k_out.data != nullptr) target.out = out(plan.k_out, index);
  }
  if (place.stored) {
    target.cache = of_k ? plan.caches.k : plan.caches.v;
    target.cache_at = (of_k ? place.at.k : place.at.v) + std::int64_t{index} * plan.head_dim;
    target.inverse = of_k ? plan.caches.k_inverse : plan.caches.v_inverse;
  }
  return target;
}

// To both places, of what has been rounded to T already.
template <class T, int kWidth, bool kNarrow>
__device__ __forceinline__ void WriteTo(const HeadTarget<T>& target, std::uint32_t at,
                                        const float (&values)[kWidth]) {
  if (target.out != nullptr) Store<T, kWidth>(target.out + at, values);
  if (target.cache == nullptr) return;
  if constexpr (kNarrow) {
    StoreNarrow<kWidth>(target.cache, target.cache_at + at, values, target.inverse);
  } else {
    Store<T, kWidth>(static_cast<T*>(target.cache) + target.cache_at + at, values);
  }
}

template <class T, int kWidth>
__device__ __forceinline__ void NormaliseWord(const T* weights, float scale,
                                              float (&values)[kWidth]) {
  float weight[kWidth];
  LoadWeights<T, kWidth>(weights, weight);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    values[j] = RoundTo<T>(RoundTo<T>(values[j] * scale) * weight[j]);
  }
}

template <class T, int kWidth>
__device__ __forceinline__ void RotateWords(const float (&cos)[kWidth], const float (&sin)[kWidth],
                                            float (&low)[kWidth], float (&high)[kWidth]) {
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    RotatePair(cos[j], sin[j], &low[j], &high[j]);
    low[j] = RoundTo<T>(low[j]);
    high[j] = RoundTo<T>(high[j]);
  }
}

template <int kWidth>
__device__ __forceinline__ float SquaresOf(const float (&low)[kWidth],
                                           const float (&high)[kWidth]) {
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) sum = fmaf(low[j], low[j], fmaf(high[j], high[j], sum));
  return sum;
}

// A token's block. Threads are (words of a half, heads): each has the same word of both halves of
// kTogether heads in registers, from the loads to the stores, and the sums are over neighbours, so
// that nobody waits for a block.
template <class T, bool kNarrow>
__global__ void __launch_bounds__(kQkMostThreads) DoHeads(const __grid_constant__ QkPlan plan) {
  constexpr int kWidth = kPacked<T>;
  constexpr int kTogether = static_cast<int>(kQkHeads);
  const std::uint32_t token = blockIdx.x;
  const std::uint32_t heads = plan.q_heads + 2 * plan.kv_heads;
  const std::uint32_t at = threadIdx.x * kWidth;
  const bool has_word = at < plan.half;  // the others only take part in the sums
  const T* const qkv = static_cast<const T*>(plan.qkv) + token * plan.qkv_token + at;
  const std::int64_t position = __ldg(plan.positions + token);
  if (position < 0 || position >= plan.most_positions) return prim::TrapInDebug();
  const TokenPlace place = PlaceOfToken(plan, token);
  float cos[kWidth];
  float sin[kWidth];
  if (has_word) {
    const float* const row = plan.cos_sin + position * plan.cos_sin_stride + at;
    LoadFloats<kWidth>(row, cos);
    LoadFloats<kWidth>(row + plan.half, sin);
  }
  // As often for all threads of a warp, because of the sums.
  for (std::uint32_t base = 0; base < heads; base += kTogether * blockDim.y) {
    float low[kTogether][kWidth] = {};
    float high[kTogether][kWidth] = {};
    float scale[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const std::uint32_t head = base + i * blockDim.y + threadIdx.y;
      if (has_word && head < heads) {
        Load<T, kWidth>(qkv + std::int64_t{head} * plan.head_dim, low[i]);
        Load<T, kWidth>(qkv + std::int64_t{head} * plan.head_dim + plan.half, high[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const float squares = prim::WarpSum(SquaresOf(low[i], high[i]), blockDim.x);
      scale[i] = rsqrtf(fmaf(squares, plan.per_element, plan.eps));
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const std::uint32_t head = base + i * blockDim.y + threadIdx.y;
      if (has_word && head < heads) {
        const HeadTarget<T> target = TargetOf<T>(plan, token, head, place);
        if (target.weight != nullptr) {
          NormaliseWord<T, kWidth>(target.weight + at, scale[i], low[i]);
          NormaliseWord<T, kWidth>(target.weight + plan.half + at, scale[i], high[i]);
          RotateWords<T, kWidth>(cos, sin, low[i], high[i]);
        }
        WriteTo<T, kWidth, kNarrow>(target, at, low[i]);
        WriteTo<T, kWidth, kNarrow>(target, at + plan.half, high[i]);
      }
    }
  }
}

// The same for any size and alignment: a warp to a head, twice over its elements. What a thread
// writes in place nobody else reads any more: all have read it for the sum.
template <class T, bool kNarrow>
__global__ void __launch_bounds__(kQkMostThreads)
    DoHeadsByElement(const __grid_constant__ QkPlan plan) {
  const std::uint32_t token = blockIdx.x;
  const std::uint32_t heads = plan.q_heads + 2 * plan.kv_heads;
  const std::int64_t position = __ldg(plan.positions + token);
  if (position < 0 || position >= plan.most_positions) return prim::TrapInDebug();
  const TokenPlace place = PlaceOfToken(plan, token);
  const float* const cos_row = plan.cos_sin + position * plan.cos_sin_stride;
  for (std::uint32_t head = threadIdx.y; head < heads; head += blockDim.y) {
    const T* const in = static_cast<const T*>(plan.qkv) + token * plan.qkv_token +
                        std::int64_t{head} * plan.head_dim;
    const HeadTarget<T> target = TargetOf<T>(plan, token, head, place);
    std::uint32_t first = 0;  // of what is not rotated
    float scale = 1;
    if (target.weight != nullptr) {
      float squares = 0;
      for (std::uint32_t i = threadIdx.x; i < plan.head_dim; i += 32) {
        const float value = ToFloat(in[i]);
        squares = fmaf(value, value, squares);
      }
      scale = rsqrtf(fmaf(prim::WarpSum(squares), plan.per_element, plan.eps));
      first = 2 * plan.half;
      for (std::uint32_t i = threadIdx.x; i < plan.half; i += 32) {
        float low[1] = {ToFloat(in[i])};
        float high[1] = {ToFloat(in[plan.half + i])};
        const float cos[1] = {__ldg(cos_row + i)};
        const float sin[1] = {__ldg(cos_row + plan.half + i)};
        NormaliseWord<T, 1>(target.weight + i, scale, low);
        NormaliseWord<T, 1>(target.weight + plan.half + i, scale, high);
        RotateWords<T, 1>(cos, sin, low, high);
        WriteTo<T, 1, kNarrow>(target, i, low);
        WriteTo<T, 1, kNarrow>(target, plan.half + i, high);
      }
    }
    for (std::uint32_t i = first + threadIdx.x; i < plan.head_dim; i += 32) {
      float value[1] = {ToFloat(in[i])};
      if (target.weight != nullptr) NormaliseWord<T, 1>(target.weight + i, scale, value);
      WriteTo<T, 1, kNarrow>(target, i, value);
    }
  }
}

template <class T, bool kNarrow>
auto ChosenQk(bool wide) {
  return wide ? DoHeads<T, kNarrow> : DoHeadsByElement<T, kNarrow>;
}

}  // namespace

Status LaunchQkNormRopeStore(const QkNormRopeStorePlan& plan, cuda::StreamRef stream) {
  const cuda::LaunchConfig config{.grid = plan.tokens,
                                  .block = dim3(plan.threads_x, plan.threads_y)};
  const bool narrow = plan.caches.dtype == DType::kFloat8E4m3;
  return WithFloatType(plan.dtype, [&](auto number) {
    using T = decltype(number);
    return cuda::Launch(stream, "qk_norm_rope_store", config,
                        narrow ? ChosenQk<T, true>(plan.wide) : ChosenQk<T, false>(plan.wide),
                        plan);
  });
}

}  // namespace ferry::kernels
