// Kernels of the quantised RMS norm: rows held in registers, and rows read once for each step.

#include "ferry/cuda/launch.cuh"
#include "ferry/cuda/prim/grid_order.cuh"
#include "ferry/kernels/cache_store.cuh"
#include "ferry/kernels/device_number.cuh"
#include "ferry/kernels/quant.cuh"
#include "ferry/kernels/rms_norm/rms_norm_quant_plan.h"
#include "ferry/kernels/rms_norm/rms_norm_row.cuh"

namespace ferry::kernels {
namespace {

// Threads are (threads_per_row, rows_per_block), each with kHeld words of its row. They become the
// words that rms_norm would write, in the same registers, and stay there until the scale is known.
template <class T, int kHeld, bool kResidual>
__global__ void __launch_bounds__(kRmsNormMaxThreads)
    QuantNormWords(const __grid_constant__ RmsNormQuantPlan plan) {
  constexpr int kWidth = kPacked<T>;
  const RmsNormPlan& norm = plan.norm;
  __shared__ float sums[32];
  __shared__ float largests[32];
  prim::GridDependencySynchronize();
  prim::LetNextGridBegin();
  const std::uint32_t row_index = blockIdx.x * blockDim.y + threadIdx.y;
  const bool there = row_index < norm.rows;  // the others only take part in the sums
  const NormRow<T> row = NormRowAt<T, kResidual>(norm, there ? row_index : 0);
  uint4 x[kHeld];
  uint4 residual[kHeld];
  uint4 weight[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const std::uint32_t word = threadIdx.x + i * blockDim.x;
    if (there && word < norm.words) {
      const std::int64_t at = std::int64_t{word} * kWidth;
      x[i] = prim::Load16(row.x + at);
      if constexpr (kResidual) residual[i] = prim::Load16(row.residual + at);
      weight[i] = prim::LoadShared16(static_cast<const T*>(norm.weight) + at);
    }
  }
  prim::IssueLoads();
  NormWord<T, kResidual> held[kHeld];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (there && threadIdx.x + i * blockDim.x < norm.words) {
      held[i].Take(x[i], residual[i]);
      squares += SquaresOfWord(held[i]);
    }
  }
  const float scale =
      rsqrtf(fmaf(RowSum(squares, norm.threads_per_row, sums), norm.per_column, norm.eps));
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const std::uint32_t word = threadIdx.x + i * blockDim.x;
    if (there && word < norm.words) {
      float values[kWidth];
      held[i].Get(values);
      if constexpr (kResidual) {
        Store<T, kWidth>(row.residual_out + std::int64_t{word} * kWidth, values);
      }
#pragma unroll
      for (int j = 0; j < kWidth; ++j) values[j] *= scale;
      x[i] = ProductsOf<T>(Pack<T>(values), weight[i]);
      Unpack<T>(x[i], values);
      largest = LargestOf(values, largest);
    }
  }
  const float inverse =
      RowQuantInverse(plan.scale, largest, row_index, there, norm.threads_per_row, largests);
  const std::int64_t out = RowOffset(norm.sizes, plan.out_strides, there ? row_index : 0);
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const std::uint32_t word = threadIdx.x + i * blockDim.x;
    if (there && word < norm.words) {
      float values[kWidth];
      Unpack<T>(x[i], values);
      StoreNarrow<kWidth>(plan.out, out + std::int64_t{word} * kWidth, values, inverse);
    }
  }
}

// What rms_norm writes, from element `at` on, and to the residual the values before the norm where
// kStore.
template <class T, int kWidth, bool kResidual, bool kStore>
__device__ __forceinline__ void LoadNormed(const RmsNormPlan& norm, const NormRow<T>& row,
                                           std::int64_t at, float scale, float (&values)[kWidth]) {
  float weight[kWidth];
  LoadSum<T, kWidth, kResidual>(row, at, values);
  LoadWeights<T, kWidth>(static_cast<const T*>(norm.weight) + at, weight);
  if constexpr (kResidual && kStore) Store<T, kWidth>(row.residual_out + at, values);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    values[i] = RoundTo<T>(RoundTo<T>(values[i] * scale) * weight[i]);
  }
}

// Blocks of QuantNormLongRows() that share a multiprocessor; 0 leaves it to ptxas, which on sm_120
// would choose more of them than the registers of each allow.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
constexpr int kQuantLongRowBlocks = 2;
#else
constexpr int kQuantLongRowBlocks = 0;
#endif

// A block to a row. The residual is written by the last pass, since the others read it.
template <class T, int kWidth, bool kResidual>
__global__ void __launch_bounds__(kRmsNormMaxThreads, kQuantLongRowBlocks)
    QuantNormLongRows(const __grid_constant__ RmsNormQuantPlan plan) {
  const RmsNormPlan& norm = plan.norm;
  __shared__ float sums[32];
  __shared__ float largests[32];
  prim::GridDependencySynchronize();
  prim::LetNextGridBegin();
  const NormRow<T> row = NormRowAt<T, kResidual>(norm, blockIdx.x);
  float squares = 0;
#pragma unroll 4
  for (std::int64_t word = threadIdx.x; word < norm.words; word += blockDim.x) {
    float values[kWidth];
    LoadSum<T, kWidth, kResidual>(row, word * kWidth, values);
    squares += Squares(values);
  }
  const float scale = rsqrtf(fmaf(prim::BlockSum(squares, sums), norm.per_column, norm.eps));
  float largest = 0;
  if (plan.scale.given == nullptr) {
#pragma unroll 2
    for (std::int64_t word = threadIdx.x; word < norm.words; word += blockDim.x) {
      float values[kWidth];
      LoadNormed<T, kWidth, kResidual, false>(norm, row, word * kWidth, scale, values);
      largest = LargestOf(values, largest);
    }
  }
  const float inverse =
      RowQuantInverse(plan.scale, largest, blockIdx.x, true, norm.threads_per_row, largests);
  const std::int64_t out = RowOffset(norm.sizes, plan.out_strides, blockIdx.x);
#pragma unroll 2
  for (std::int64_t word = threadIdx.x; word < norm.words; word += blockDim.x) {
    float values[kWidth];
    LoadNormed<T, kWidth, kResidual, true>(norm, row, word * kWidth, scale, values);
    StoreNarrow<kWidth>(plan.out, out + word * kWidth, values, inverse);
  }
}

using QuantNormKernel = void (*)(RmsNormQuantPlan);

template <class T, bool kResidual>
QuantNormKernel ChosenQuantNorm(const RmsNormPlan& norm) {
  switch (norm.form) {
    case RmsNormForm::kOneWord: return QuantNormWords<T, 1, kResidual>;
    case RmsNormForm::kTwoWords: return QuantNormWords<T, 2, kResidual>;
    case RmsNormForm::kFourWords: return QuantNormWords<T, 4, kResidual>;
    case RmsNormForm::kEightElements:
    case RmsNormForm::kTwoPass: break;
  }
  return norm.wide ? QuantNormLongRows<T, kPacked<T>, kResidual>
                   : QuantNormLongRows<T, 1, kResidual>;
}

}  // namespace

Status LaunchRmsNormQuant(const RmsNormQuantPlan& plan, cuda::StreamRef stream) {
  const RmsNormPlan& norm = plan.norm;
  const cuda::LaunchConfig config{
      .grid = norm.blocks, .block = dim3(norm.threads_per_row, norm.rows_per_block), .early = true};
  return WithFloatType(norm.dtype, [&](auto number) {
    using T = decltype(number);
    const QuantNormKernel kernel =
        norm.residual != nullptr ? ChosenQuantNorm<T, true>(norm) : ChosenQuantNorm<T, false>(norm);
    return cuda::Launch(stream, "rms_norm_quant", config, kernel, plan);
  });
}

}  // namespace ferry::kernels
