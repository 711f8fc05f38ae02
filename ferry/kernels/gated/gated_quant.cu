// Kernels of the quantised silu_and_mul: words on their own, and rows whose scale is found first.

#include "ferry/cuda/launch.cuh"
#include "ferry/cuda/prim/grid_order.cuh"
#include "ferry/kernels/activation.cuh"
#include "ferry/kernels/cache_store.cuh"
#include "ferry/kernels/device_number.cuh"
#include "ferry/kernels/gated/gated_quant_plan.h"
#include "ferry/kernels/quant.cuh"
#include "ferry/kernels/tiles.cuh"

namespace ferry::kernels {
namespace {

// silu(gate) * up, rounded as silu_and_mul writes it.
template <class T, int kWidth>
__device__ __forceinline__ void GatedNumbers(const Word<T, kWidth>& gate_word,
                                             const Word<T, kWidth>& up_word,
                                             float (&values)[kWidth]) {
  float up[kWidth];
  NumbersOf<T, kWidth>(gate_word, values);
  NumbersOf<T, kWidth>(up_word, up);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) values[i] = RoundTo<T>(Silu<T>(values[i]) * up[i]);
}
template <class T, int kWidth>
__device__ __forceinline__ void LoadGated(const GatedQuantPlan& plan, std::int64_t at,
                                          float (&values)[kWidth]) {
  const Word<T, kWidth> gate = LoadWord<T, kWidth>(static_cast<const T*>(plan.gate) + at);
  const Word<T, kWidth> up = LoadWord<T, kWidth>(static_cast<const T*>(plan.up) + at);
  GatedNumbers<T, kWidth>(gate, up, values);
}

// A thread's word, with a scale that is given.
template <class T, int kWidth>
__global__ void __launch_bounds__(kTileThreads)
    QuantGatedTiles(const __grid_constant__ GatedQuantPlan plan) {
  prim::GridDependencySynchronize();
  prim::LetNextGridBegin();
  const TilePlace place = PlaceInTile(plan.tiles, 1);
  if (place.word >= place.end) return;
  const std::int64_t at = std::int64_t{place.word} * kWidth;
  float values[kWidth];
  LoadGated<T, kWidth>(plan, RowOffset(plan.sizes, plan.x_strides, place.row) + at, values);
  StoreNarrow<kWidth>(plan.out, RowOffset(plan.sizes, plan.out_strides, place.row) + at, values,
                      QuantInverseOf(__ldg(plan.scale.given)));
}

// A row to a block, whose threads hold kGatedQuantHeld words of results each, packed, until the
// scale is known.
template <class T>
__global__ void __launch_bounds__(kGatedQuantMaxThreads)
    QuantGatedWords(const __grid_constant__ GatedQuantPlan plan) {
  constexpr int kWidth = kPacked<T>;
  constexpr int kHeld = static_cast<int>(kGatedQuantHeld);
  __shared__ float largests[32];
  prim::GridDependencySynchronize();
  prim::LetNextGridBegin();
  const std::int64_t x = RowOffset(plan.sizes, plan.x_strides, blockIdx.x);
  const std::int64_t out = RowOffset(plan.sizes, plan.out_strides, blockIdx.x);
  uint4 gate[kHeld];
  uint4 up[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const std::uint32_t word = threadIdx.x + i * blockDim.x;
    if (word < plan.words) {
      const std::int64_t at = x + std::int64_t{word} * kWidth;
      gate[i] = prim::Load16(static_cast<const T*>(plan.gate) + at);
      up[i] = prim::Load16(static_cast<const T*>(plan.up) + at);
    }
  }
  prim::IssueLoads();
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (threadIdx.x + i * blockDim.x < plan.words) {
      float values[kWidth];
      GatedNumbers<T, kWidth>(gate[i], up[i], values);
      largest = LargestOf(values, largest);
      gate[i] = Pack<T>(values);
    }
  }
  const float inverse =
      RowQuantInverse(plan.scale, largest, blockIdx.x, true, blockDim.x, largests);
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const std::uint32_t word = threadIdx.x + i * blockDim.x;
    if (word < plan.words) {
      float values[kWidth];
      Unpack<T>(gate[i], values);
      StoreNarrow<kWidth>(plan.out, out + std::int64_t{word} * kWidth, values, inverse);
    }
  }
}

// Blocks of QuantGatedLongRows() that share a multiprocessor; 0 leaves it to ptxas, which on sm_100
// would choose more of them than the registers of each allow.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000 && __CUDA_ARCH__ < 1200
constexpr int kLongRowBlocks = 2;
#else
constexpr int kLongRowBlocks = 0;
#endif

// A row to a block, computed twice: for the scale, and for the results.
template <class T, int kWidth>
__global__ void __launch_bounds__(kGatedQuantMaxThreads, kLongRowBlocks)
    QuantGatedLongRows(const __grid_constant__ GatedQuantPlan plan) {
  __shared__ float largests[32];
  prim::GridDependencySynchronize();
  prim::LetNextGridBegin();
  const std::int64_t x = RowOffset(plan.sizes, plan.x_strides, blockIdx.x);
  const std::int64_t out = RowOffset(plan.sizes, plan.out_strides, blockIdx.x);
  float largest = 0;
#pragma unroll 4
  for (std::int64_t word = threadIdx.x; word < plan.words; word += blockDim.x) {
    float values[kWidth];
    LoadGated<T, kWidth>(plan, x + word * kWidth, values);
    largest = LargestOf(values, largest);
  }
  const float inverse =
      RowQuantInverse(plan.scale, largest, blockIdx.x, true, blockDim.x, largests);
#pragma unroll 2
  for (std::int64_t word = threadIdx.x; word < plan.words; word += blockDim.x) {
    float values[kWidth];
    LoadGated<T, kWidth>(plan, x + word * kWidth, values);
    StoreNarrow<kWidth>(plan.out, out + word * kWidth, values, inverse);
  }
}

using GatedQuantKernel = void (*)(GatedQuantPlan);

template <class T>
GatedQuantKernel ChosenGatedQuant(const GatedQuantPlan& plan) {
  switch (plan.form) {
    case GatedQuantForm::kTiles:
      return plan.wide ? QuantGatedTiles<T, kPacked<T>> : QuantGatedTiles<T, 1>;
    case GatedQuantForm::kHeldWords: return QuantGatedWords<T>;
    case GatedQuantForm::kTwoPass: break;
  }
  return plan.wide ? QuantGatedLongRows<T, kPacked<T>> : QuantGatedLongRows<T, 1>;
}

}  // namespace

Status LaunchSiluAndMulQuant(const GatedQuantPlan& plan, cuda::StreamRef stream) {
  const bool tiles = plan.form == GatedQuantForm::kTiles;
  const cuda::LaunchConfig config{
      .grid = tiles ? plan.tiles.blocks : plan.rows,
      .block = tiles ? dim3(plan.tiles.threads_x, plan.tiles.threads_y) : dim3(plan.threads),
      .early = true};
  return WithFloatType(plan.dtype, [&](auto number) {
    using T = decltype(number);
    return cuda::Launch(stream, "silu_and_mul_quant", config, ChosenGatedQuant<T>(plan), plan);
  });
}

}  // namespace ferry::kernels
