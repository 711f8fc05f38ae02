// Kernels of RMS norm: rows held in registers, and rows read twice.

#include "ferry/cuda/launch.cuh"
#include "ferry/cuda/prim/grid_order.cuh"
#include "ferry/cuda/prim/reduce.cuh"
#include "ferry/kernels/device_number.cuh"
#include "ferry/kernels/rms_norm/rms_norm_plan.h"
#include "ferry/kernels/rms_norm/rms_norm_row.cuh"

namespace ferry::kernels {
namespace {

template <class T, int kWidth, bool kResidual>
__device__ __forceinline__ void StoreNormed(const NormRow<T>& row, std::int64_t at,
                                            const float (&values)[kWidth],
                                            const float (&weight)[kWidth], float scale) {
  if constexpr (kResidual) Store<T, kWidth>(row.residual_out + at, values);
  float out[kWidth];
#pragma unroll
  // Rounds before the weight, as Hugging Face's layers do (docs/kernels/accuracy.md).
  for (int i = 0; i < kWidth; ++i) out[i] = RoundTo<T>(values[i] * scale) * weight[i];
  Store<T, kWidth>(row.out + at, out);
}

// Threads are (threads_per_row, rows_per_block). Each has kHeld elements of its row, all of them in
// flight at once, and the weights that go with them, which need not wait for the sum.
template <class T, int kHeld, bool kResidual>
__global__ void __launch_bounds__(kRmsNormMaxThreads)
    NormHeldElements(const __grid_constant__ RmsNormPlan plan) {
  constexpr int kWidth = 1;
  // A word for each warp of the block, which BlockSum() wants.
  __shared__ float sums[32];
  prim::GridDependencySynchronize();
  prim::LetNextGridBegin();
  const std::uint32_t row_index = blockIdx.x * blockDim.y + threadIdx.y;
  const bool there = row_index < plan.rows;  // the others only take part in the sums
  // A row for threads that have none, so that their addresses are valid; they read and write
  // nothing.
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

template <class T, bool kResidual>
__device__ __forceinline__ void StoreNormWord(const NormRow<T>& row, std::int64_t at,
                                              const NormWord<T, kResidual>& word,
                                              const uint4& weight, float scale) {
  float values[kPacked<T>];
  word.Get(values);
  if constexpr (kResidual) Store<T, kPacked<T>>(row.residual_out + at, values);
#pragma unroll
  for (int i = 0; i < kPacked<T>; ++i) values[i] *= scale;
  prim::Store16(row.out + at, ProductsOf<T>(Pack<T>(values), weight));
}

// As NormHeldElements(), of words.
template <class T, int kHeld, bool kResidual>
__global__ void __launch_bounds__(kRmsNormMaxThreads)
    NormHeldWords(const __grid_constant__ RmsNormPlan plan) {
  constexpr int kWidth = kPacked<T>;
  __shared__ float sums[32];
  prim::GridDependencySynchronize();
  prim::LetNextGridBegin();
  const std::uint32_t row_index = blockIdx.x * blockDim.y + threadIdx.y;
  const bool there = row_index < plan.rows;  // the others only take part in the sums
  const NormRow<T> row = NormRowAt<T, kResidual>(plan, there ? row_index : 0);
  const T* const weights = static_cast<const T*>(plan.weight);
  // Loads alone, so that none waits for another.
  uint4 x[kHeld];
  uint4 residual[kHeld];
  uint4 weight[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const std::uint32_t word = threadIdx.x + i * blockDim.x;
    if (there && word < plan.words) {
      const std::int64_t at = std::int64_t{word} * kWidth;
      x[i] = prim::Load16(row.x + at);
      if constexpr (kResidual) residual[i] = prim::Load16(row.residual + at);
      weight[i] = prim::LoadShared16(weights + at);
    }
  }
  prim::IssueLoads();
  NormWord<T, kResidual> held[kHeld];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (there && threadIdx.x + i * blockDim.x < plan.words) {
      held[i].Take(x[i], residual[i]);
      squares += SquaresOfWord(held[i]);
    }
  }
  const float scale =
      rsqrtf(fmaf(RowSum(squares, plan.threads_per_row, sums), plan.per_column, plan.eps));
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const std::uint32_t word = threadIdx.x + i * blockDim.x;
    if (there && word < plan.words) {
      const std::int64_t at = std::int64_t{word} * kWidth;
      StoreNormWord(row, at, held[i], weight[i], scale);
    }
  }
}

// A block to a row that no block's registers can hold. The sums are not stored by the first pass,
// since what they would be rounded to is not what is normalised.
template <class T, int kWidth, bool kResidual>
__global__ void __launch_bounds__(kRmsNormMaxThreads)
    NormLongRows(const __grid_constant__ RmsNormPlan plan) {
  __shared__ float sums[32];
  prim::GridDependencySynchronize();
  prim::LetNextGridBegin();
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
  // The second pass reads the row again, most likely from the caches. In place it may: a thread
  // reads the same words as in the first pass, before it writes them.
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
  switch (plan.form) {
    case RmsNormForm::kOneWord: return NormHeldWords<T, 1, kResidual>;
    case RmsNormForm::kTwoWords: return NormHeldWords<T, 2, kResidual>;
    case RmsNormForm::kFourWords: return NormHeldWords<T, 4, kResidual>;
    case RmsNormForm::kEightElements: return NormHeldElements<T, 8, kResidual>;
    case RmsNormForm::kTwoPass: break;
  }
  return plan.wide ? NormLongRows<T, kPacked<T>, kResidual> : NormLongRows<T, 1, kResidual>;
}

}  // namespace

Status LaunchRmsNorm(const RmsNormPlan& plan, cuda::StreamRef stream) {
  const cuda::LaunchConfig config{
      .grid = plan.blocks, .block = dim3(plan.threads_per_row, plan.rows_per_block), .early = true};
  return WithFloatType(plan.dtype, [&](auto number) {
    using T = decltype(number);
    if (plan.residual != nullptr) {
      return cuda::Launch(stream, "add_rms_norm", config, ChosenNorm<T, true>(plan), plan);
    }
    return cuda::Launch(stream, "rms_norm", config, ChosenNorm<T, false>(plan), plan);
  });
}

}  // namespace ferry::kernels
