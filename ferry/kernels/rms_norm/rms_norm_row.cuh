// Device code that the RMS norm kernels share: the place of a row, its values, and sums over it.
#pragma once
#include "ferry/cuda/prim/reduce.cuh"
#include "ferry/kernels/device_number.cuh"
#include "ferry/kernels/rms_norm/rms_norm_plan.h"

namespace ferry::kernels {

// Where this thread's row is in each tensor.
template <class T>
struct NormRow {
  const T* x;
  const T* residual;
  T* residual_out;
  T* out;
};

template <class T, bool kResidual>
__device__ __forceinline__ NormRow<T> NormRowAt(const RmsNormPlan& plan, std::uint32_t row) {
  NormRow<T> at{};
  at.x = static_cast<const T*>(plan.x) + RowOffset(plan.sizes, plan.x_strides, row);
  at.out = static_cast<T*>(plan.out) + RowOffset(plan.sizes, plan.out_strides, row);
  if constexpr (kResidual) {
    at.residual =
        static_cast<const T*>(plan.residual) + RowOffset(plan.sizes, plan.residual_strides, row);
    at.residual_out =
        static_cast<T*>(plan.residual_out) + RowOffset(plan.sizes, plan.residual_out_strides, row);
  }
  return at;
}

// The values to normalise, from element `at` of the row on.
template <class T, int kWidth, bool kResidual>
__device__ __forceinline__ void LoadSum(const NormRow<T>& row, std::int64_t at,
                                        float (&values)[kWidth]) {
  Load<T, kWidth>(row.x + at, values);
  if constexpr (kResidual) {
    float residual[kWidth];
    Load<T, kWidth>(row.residual + at, residual);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] += residual[i];
  }
}

template <int kWidth>
__device__ __forceinline__ float Squares(const float (&values)[kWidth]) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) sum = fmaf(values[i], values[i], sum);
  return sum;
}

// Over the threads of a row; all threads of the block call it.
__device__ __forceinline__ float RowSum(float value, std::uint32_t threads, float* held) {
  return threads > 32 ? prim::BlockSum(value, held) : prim::WarpSum(value, threads);
}

// The values to normalise of one word, kept as loaded where possible, which needs fewer registers.
template <class T, bool kResidual>
struct NormWord;
template <class T>
struct NormWord<T, false> {
  uint4 word;

  __device__ __forceinline__ void Take(const uint4& x, const uint4& /*residual*/) { word = x; }
  __device__ __forceinline__ void Get(float (&values)[kPacked<T>]) const {
    Unpack<T>(word, values);
  }
};
template <class T>
struct NormWord<T, true> {
  float sums[kPacked<T>];

  __device__ __forceinline__ void Take(const uint4& x, const uint4& residual) {
    float other[kPacked<T>];
    Unpack<T>(x, sums);
    Unpack<T>(residual, other);
#pragma unroll
    for (int i = 0; i < kPacked<T>; ++i) sums[i] += other[i];
  }
  __device__ __forceinline__ void Get(float (&values)[kPacked<T>]) const {
#pragma unroll
    for (int i = 0; i < kPacked<T>; ++i) values[i] = sums[i];
  }
};

template <class T, bool kResidual>
__device__ __forceinline__ float SquaresOfWord(const NormWord<T, kResidual>& word) {
  float values[kPacked<T>];
  word.Get(values);
  return Squares(values);
}

}  // namespace ferry::kernels
