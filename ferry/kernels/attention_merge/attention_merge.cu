// Kernel of the merge of attention states.

#include "ferry/cuda/launch.cuh"
#include "ferry/cuda/prim/grid_order.cuh"
#include "ferry/kernels/attention_merge/attention_merge_plan.h"
#include "ferry/kernels/device_number.cuh"
#include "ferry/kernels/tiles.cuh"

namespace ferry::kernels {
namespace {

// An lse of inf says that there are no keys, as -inf does.
__device__ __forceinline__ float MergeLseAt(const float* lse) {
  const float value = __ldg(lse);
  return isinf(value) ? -INFINITY : value;
}

// 0 for a part without keys, also where there are none in either.
__device__ __forceinline__ float MergeWeightOf(float lse, float largest) {
  return lse == -INFINITY ? 0.0F : expf(lse - largest);
}

// A part of weight 0 counts for nothing even where it holds NaN.
__device__ __forceinline__ float Weighted(float weight, float value) {
  return weight == 0 ? 0.0F : weight * value;
}

// A thread's word of a head. All loads are in flight before the store, so that it may be in place.
template <class T, int kWidth>
__global__ void __launch_bounds__(kTileThreads)
    MergeRows(const __grid_constant__ AttentionMergePlan plan) {
  prim::GridDependencySynchronize();
  prim::LetNextGridBegin();
  const TilePlace place = PlaceInTile(plan.tiles, 1);
  if (place.word >= place.end) return;
  const std::int64_t query = place.row / plan.heads;
  const std::int64_t head = place.row % plan.heads;
  const auto lse_of = [&](const MergeLse& lse) {
    return lse.data + query * lse.query + head * lse.head;
  };
  const std::int64_t at = std::int64_t{place.word} * kWidth;
  float a[kWidth];
  float b[kWidth];
  const Word<T, kWidth> a_word = LoadWord<T, kWidth>(
      static_cast<const T*>(plan.out_a) + RowOffset(plan.sizes, plan.a_strides, place.row) + at);
  const Word<T, kWidth> b_word = LoadWord<T, kWidth>(
      static_cast<const T*>(plan.out_b) + RowOffset(plan.sizes, plan.b_strides, place.row) + at);
  const float lse_a = MergeLseAt(lse_of(plan.lse_a));
  const float lse_b = MergeLseAt(lse_of(plan.lse_b));
  const float largest = fmaxf(lse_a, lse_b);
  const float weight_a = MergeWeightOf(lse_a, largest);
  const float weight_b = MergeWeightOf(lse_b, largest);
  const float sum = weight_a + weight_b;
  const float inverse = sum == 0 ? 0.0F : 1 / sum;
  NumbersOf<T, kWidth>(a_word, a);
  NumbersOf<T, kWidth>(b_word, b);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    a[i] = (Weighted(weight_a, a[i]) + Weighted(weight_b, b[i])) * inverse;
  }
  Store<T, kWidth>(
      static_cast<T*>(plan.out) + RowOffset(plan.sizes, plan.out_strides, place.row) + at, a);
  if (place.word == 0 && plan.lse.data != nullptr) {
    *lse_of(plan.lse) = sum == 0 ? largest : largest + logf(sum);
  }
}

}  // namespace

Status LaunchAttentionMerge(const AttentionMergePlan& plan, cuda::StreamRef stream) {
  const cuda::LaunchConfig config{.grid = plan.tiles.blocks,
                                  .block = dim3(plan.tiles.threads_x, plan.tiles.threads_y),
                                  .early = true};
  return WithFloatType(plan.dtype, [&](auto number) {
    using T = decltype(number);
    return cuda::Launch(stream, "merge_attention_states", config,
                        plan.wide ? MergeRows<T, kPacked<T>> : MergeRows<T, 1>, plan);
  });
}

}  // namespace ferry::kernels
