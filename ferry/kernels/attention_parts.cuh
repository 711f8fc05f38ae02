// Results of attention over some of a row's keys, and how the parts of a row are put together.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "ferry/cuda/prim/float_math.cuh"
#include "ferry/kernels/device_number.cuh"

namespace ferry::kernels {

// Parts in a workspace; a row is one head of one query. Part s of row r has its sum of weights
// times values, not yet divided, in the words outs[(r * splits + s) * head size / 4] on, and the
// sum of its weights in sums[r * splits + s].
struct AttentionParts {
  float4* outs;
  float2* sums;
  int splits;
};

// The sum of the weights of a part, each 2^(score * scale - base); base is -inf for no keys.
__device__ __forceinline__ float2 PartSum(float base, float sum) { return {base, sum}; }

// Four neighbours of a row's sum of weights times values, and the base and sum of its weights.
struct MergedParts {
  float base;
  float sum;
  float4 out;
};

// Partial softmax results are merged as in FlashAttention-2: each is rescaled from its own maximum
// to the common one, and sums and outputs are added. If no part has seen a key, all weights are 0.
template <int kHead>
__device__ __forceinline__ MergedParts MergeParts(const AttentionParts& parts, std::int64_t row,
                                                  int column) {
  const std::int64_t first = row * parts.splits;
  const float2* const sums = parts.sums + first;
  MergedParts merged{-INFINITY, 0, {}};
  for (int s = 0; s < parts.splits; ++s) merged.base = fmaxf(merged.base, sums[s].x);
#pragma unroll 8
  for (int s = 0; s < parts.splits; ++s) {
    const float2 part = sums[s];
    const float weight = part.x == -INFINITY ? 0.0F : prim::Exp2(part.x - merged.base);
    const float4 value = parts.outs[(first + s) * (kHead / 4) + column / 4];
    merged.sum += weight * part.y;
    merged.out.x += weight * value.x;
    merged.out.y += weight * value.y;
    merged.out.z += weight * value.z;
    merged.out.w += weight * value.w;
  }
  return merged;
}

// Four neighbours of an output row, each times `by`.
template <class T>
__device__ __forceinline__ void StoreFour(T* at, const float4& value, float by) {
  *static_cast<uint2*>(static_cast<void*>(at)) =
      uint2{WordOf(value.x * by, value.y * by, T{}), WordOf(value.z * by, value.w * by, T{})};
}

}  // namespace ferry::kernels
