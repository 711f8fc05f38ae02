#include "ferry/cuda/launch.cuh"
#include "ferry/kernels/device_number.cuh"
#include "ferry/kernels/rms_norm/rms_norm_plan.h"
#include "ferry/prim/reduce.cuh"

namespace ferry::kernels {
namespace {

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

// What is normalised, from the element `at` of the row on.
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

template <class T, int kWidth, bool kResidual>
__device__ __forceinline__ void StoreNormed(const NormRow<T>& row, std::int64_t at,
                                            const float (&values)[kWidth],
                                            const float (&weight)[kWidth], float scale) {
  if constexpr (kResidual) Store<T, kWidth>(row.residual_out + at, values);
  float out[kWidth];
#pragma unroll
  for (int i = 0; i < kWidth; ++i) out[i] = RoundTo<T>(values[i] * scale) * weight[i];
  Store<T, kWidth>(row.out + at, out);
}

// Over the threads of a row; all threads of the block call it.
__device__ __forceinline__ float RowSum(float value, std::uint32_t threads, float* held) {
  return threads > 32 ? prim::BlockSum(value, held) : prim::WarpSum(value, threads);
}

// Threads are (threads_per_row, rows_per_block). Each has kHeld words of its row, all of them under
// way at once, and the weights that go with them, which need not wait for the sum.
template <class T, int kWidth, int kHeld, bool kResidual>
__global__ void __launch_bounds__(kRmsNormMostThreads)
    NormHeldRows(const __grid_constant__ RmsNormPlan plan) {
  __shared__ float sums[32];
  const std::uint32_t row_index = blockIdx.x * blockDim.y + threadIdx.y;
  const bool there = row_index < plan.rows;  // the others only take part in the sums
  const NormRow<T> row = NormRowAt<T, kResidual>(plan, there ? row_index : 0);
  float values[kHeld][kWidth];
  float weight[kHeld][kWidth];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const std::uint32_t word = threadIdx.x + i * blockDim.x;
    if (there && word < plan.words) {
      LoadSum<T, kWidth, kResidual>(row, std::int64_t{word} * kWidth, values[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const std::uint32_t word = threadIdx.x + i * blockDim.x;
    if (there && word < plan.words) {
      LoadWeights<T, kWidth>(static_cast<const T*>(plan.weight) + std::int64_t{word} * kWidth,
                             weight[i]);
      squares += Squares(values[i]);
    }
  }
  const float scale =
      rsqrtf(fmaf(RowSum(squares, plan.threads_per_row, sums), plan.per_column, plan.eps));
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const std::uint32_t word = threadIdx.x + i * blockDim.x;
    if (there && word < plan.words) {
      StoreNormed<T, kWidth, kResidual>(row, std::int64_t{word} * kWidth, values[i], weight[i],
                                        scale);
    }
  }
}

// A block to a row that no block's registers can hold. The sums are not stored by the first pass,
// since what they would be rounded to is not what is normalised.
template <class T, int kWidth, bool kResidual>
__global__ void __launch_bounds__(kRmsNormMostThreads)
    NormLongRows(const __grid_constant__ RmsNormPlan plan) {
  __shared__ float sums[32];
  const NormRow<T> row = NormRowAt<T, kResidual>(plan, blockIdx.x);
  float squares = 0;
#pragma unroll 4
  for (std::int64_t word = threadIdx.x; word < plan.words; word += blockDim.x) {
    float values[kWidth];
    LoadSum<T, kWidth, kResidual>(row, word * kWidth, values);
    squares += Squares(values);
  }
  const float scale = rsqrtf(fmaf(prim::BlockSum(squares, sums), plan.per_column, plan.eps));
#pragma unroll 2
  for (std::int64_t word = threadIdx.x; word < plan.words; word += blockDim.x) {
    float values[kWidth];
    float weight[kWidth];
    LoadSum<T, kWidth, kResidual>(row, word * kWidth, values);
    LoadWeights<T, kWidth>(static_cast<const T*>(plan.weight) + word * kWidth, weight);
    StoreNormed<T, kWidth, kResidual>(row, word * kWidth, values, weight, scale);
  }
}

using NormKernel = void (*)(RmsNormPlan);

template <class T, bool kResidual>
NormKernel ChosenNorm(const RmsNormPlan& plan) {
  constexpr int kWide = kPacked<T>;
  switch (plan.form) {
    case RmsNormForm::kOneWord: return NormHeldRows<T, kWide, 1, kResidual>;
    case RmsNormForm::kFourWords: return NormHeldRows<T, kWide, 4, kResidual>;
    case RmsNormForm::kEightElements: return NormHeldRows<T, 1, 8, kResidual>;
    case RmsNormForm::kTwoPass: break;
  }
  return plan.wide ? NormLongRows<T, kWide, kResidual> : NormLongRows<T, 1, kResidual>;
}

}  // namespace

Status LaunchRmsNorm(const RmsNormPlan& plan, cuda::StreamRef stream) {
  const cuda::LaunchConfig config{.grid = plan.blocks,
                                  .block = dim3(plan.threads_per_row, plan.rows_per_block)};
  return WithFloatType(plan.dtype, [&](auto number) {
    using T = decltype(number);
    if (plan.residual != nullptr) {
      return cuda::Launch(stream, "add_rms_norm", config, ChosenNorm<T, true>(plan), plan);
    }
    return cuda::Launch(stream, "rms_norm", config, ChosenNorm<T, false>(plan), plan);
  });
}

}  // namespace ferry::kernels
