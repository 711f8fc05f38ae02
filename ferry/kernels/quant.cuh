// Device code of e4m3 results: a row's scale, and the largest magnitude that it follows from.
#pragma once
#include "ferry/cuda/prim/reduce.cuh"
#include "ferry/kernels/device_number.cuh"
#include "ferry/kernels/quant.h"

namespace ferry::kernels {

// NaN does not count: fmaxf() returns its other argument.
template <int kWidth>
__device__ __forceinline__ float LargestOf(const float (&values)[kWidth], float largest) {
#pragma unroll
  for (int i = 0; i < kWidth; ++i) largest = fmaxf(largest, fabsf(values[i]));
  return largest;
}

// Over the `threads` of a row: a power of two up to 32, or the whole block. All threads of the
// block call it. `held`: 32 floats of shared memory that nothing else uses.
__device__ __forceinline__ float RowMax(float value, std::uint32_t threads, float* held) {
  return threads > 32 ? prim::BlockMax(value, held) : prim::WarpMax(value, threads);
}

// What a row's elements are multiplied by. All threads of the block call it; the first thread of a
// row that is there writes the row's scale where one is made.
__device__ __forceinline__ float RowQuantInverse(const QuantScale& scale, float largest,
                                                 std::uint32_t row, bool there,
                                                 std::uint32_t threads, float* held) {
  if (scale.given != nullptr) return QuantInverseOf(__ldg(scale.given));
  const float made = QuantScaleOf(RowMax(largest, threads, held), scale.bound);
  if (there && threadIdx.x == 0) scale.made[row] = made;
  return QuantInverseOf(made);
}

}  // namespace ferry::kernels
