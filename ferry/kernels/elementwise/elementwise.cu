// Kernels of the elementwise ops.

#include "ferry/cuda/launch.cuh"
#include "ferry/cuda/prim/grid_order.cuh"
#include "ferry/kernels/activation.cuh"
#include "ferry/kernels/device_number.cuh"
#include "ferry/kernels/elementwise/elementwise_plan.h"
#include "ferry/kernels/tiles.cuh"

namespace ferry::kernels {
namespace {

template <class T, int kWidth, GeluForm kForm>
__device__ __forceinline__ void StoreGelu(T* to, const Word<T, kWidth>& x,
                                          const float (&bias)[kWidth]) {
  float values[kWidth];
  NumbersOf<T, kWidth>(x, values);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    const float sum = values[j] + bias[j];
    values[j] = kForm == GeluForm::kExact ? GeluErf(sum) : GeluTanh<T>(sum);
  }
  Store<T, kWidth>(to, values);
}

// All of a thread's loads are in flight before its first store.
template <class T, int kWidth, GeluForm kForm>
__global__ void __launch_bounds__(kTileThreads) AddGelu(const __grid_constant__ AddGeluPlan plan) {
  constexpr int kWords = static_cast<int>(kAddGeluWords);
  prim::GridDependencySynchronize();
  prim::LetNextGridBegin();
  const TilePlace place = PlaceInTile(plan.tiles, kWords);
  const T* const x =
      static_cast<const T*>(plan.x) + RowOffset(plan.sizes, plan.x_strides, place.row);
  T* const out = static_cast<T*>(plan.out) + RowOffset(plan.sizes, plan.out_strides, place.row);
  Word<T, kWidth> words[kWords];
  Word<T, kWidth> biases[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const std::uint32_t word = place.word + i * blockDim.x;
    if (word < place.end) {
      const std::int64_t at = std::int64_t{word} * kWidth;
      words[i] = LoadWord<T, kWidth>(x + at);
      biases[i] = LoadSharedWord<T, kWidth>(static_cast<const T*>(plan.bias) + at);
    }
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const std::uint32_t word = place.word + i * blockDim.x;
    if (word < place.end) {
      float bias[kWidth];
      NumbersOf<T, kWidth>(biases[i], bias);
      StoreGelu<T, kWidth, kForm>(out + std::int64_t{word} * kWidth, words[i], bias);
    }
  }
}

// A thread's word of each tensor: three loads are in flight.
template <class T, int kWidth>
__global__ void __launch_bounds__(kTileThreads) MulAdd(const __grid_constant__ MulAddPlan plan) {
  prim::GridDependencySynchronize();
  prim::LetNextGridBegin();
  const TilePlace place = PlaceInTile(plan.tiles, 1);
  if (place.word >= place.end) return;
  const std::int64_t at = std::int64_t{place.word} * kWidth;
  const auto load = [&](const void* data, const RowStrides& strides) {
    return LoadWord<T, kWidth>(static_cast<const T*>(data) +
                               RowOffset(plan.sizes, strides, place.row) + at);
  };
  const Word<T, kWidth> words[3] = {load(plan.a, plan.a_strides), load(plan.b, plan.b_strides),
                                    load(plan.c, plan.c_strides)};
  float a[kWidth];
  float b[kWidth];
  float c[kWidth];
  NumbersOf<T, kWidth>(words[0], a);
  NumbersOf<T, kWidth>(words[1], b);
  NumbersOf<T, kWidth>(words[2], c);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) a[j] = fmaf(a[j], b[j], c[j]);
  Store<T, kWidth>(
      static_cast<T*>(plan.out) + RowOffset(plan.sizes, plan.out_strides, place.row) + at, a);
}

// The next kernel may begin while one of these ends.
cuda::LaunchConfig TileConfig(const RowTiles& tiles) {
  return {.grid = tiles.blocks, .block = dim3(tiles.threads_x, tiles.threads_y), .early = true};
}

}  // namespace

Status LaunchAddGelu(const AddGeluPlan& plan, cuda::StreamRef stream) {
  return WithFloatType(plan.dtype, [&](auto number) {
    using T = decltype(number);
    constexpr GeluForm kExact = GeluForm::kExact;
    constexpr GeluForm kTanh = GeluForm::kTanh;
    const auto exact = plan.wide ? AddGelu<T, kPacked<T>, kExact> : AddGelu<T, 1, kExact>;
    const auto by_tanh = plan.wide ? AddGelu<T, kPacked<T>, kTanh> : AddGelu<T, 1, kTanh>;
    return cuda::Launch(stream, "fused_add_gelu", TileConfig(plan.tiles),
                        plan.form == kExact ? exact : by_tanh, plan);
  });
}

Status LaunchMulAdd(const MulAddPlan& plan, cuda::StreamRef stream) {
  return WithFloatType(plan.dtype, [&](auto number) {
    using T = decltype(number);
    return cuda::Launch(stream, "element_wise_mul_add", TileConfig(plan.tiles),
                        plan.wide ? MulAdd<T, kPacked<T>> : MulAdd<T, 1>, plan);
  });
}

}  // namespace ferry::kernels
