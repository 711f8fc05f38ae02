#include "ferry/cuda/launch.cuh"
#include "ferry/kernels/activation.cuh"
#include "ferry/kernels/device_number.cuh"
#include "ferry/kernels/elementwise/elementwise_plan.h"
#include "ferry/kernels/tiles.cuh"

namespace ferry::kernels {
namespace {

// All of a thread's loads are under way before its first store, here and below.
template <class T, int kWidth>
__global__ void __launch_bounds__(kTileThreads) AddGelu(const __grid_constant__ AddGeluPlan plan) {
  constexpr int kWords = static_cast<int>(kAddGeluWords);
  const TilePlace place = PlaceInTile(plan.tiles, kWords);
  const T* const x =
      static_cast<const T*>(plan.x) + RowOffset(plan.sizes, plan.x_strides, place.row);
  T* const out = static_cast<T*>(plan.out) + RowOffset(plan.sizes, plan.out_strides, place.row);
  float values[kWords][kWidth];
  float bias[kWords][kWidth];
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const std::uint32_t word = place.word + i * blockDim.x;
    if (word < place.end) {
      const std::int64_t at = std::int64_t{word} * kWidth;
      Load<T, kWidth>(x + at, values[i]);
      LoadWeights<T, kWidth>(static_cast<const T*>(plan.bias) + at, bias[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const std::uint32_t word = place.word + i * blockDim.x;
    if (word < place.end) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) values[i][j] = GeluTanh<T>(values[i][j] + bias[i][j]);
      Store<T, kWidth>(out + std::int64_t{word} * kWidth, values[i]);
    }
  }
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kTileThreads) MulAdd(const __grid_constant__ MulAddPlan plan) {
  constexpr int kWords = static_cast<int>(kMulAddWords);
  const TilePlace place = PlaceInTile(plan.tiles, kWords);
  const auto row = [&](const void* data, const RowStrides& strides) {
    return static_cast<const T*>(data) + RowOffset(plan.sizes, strides, place.row);
  };
  const T* const a = row(plan.a, plan.a_strides);
  const T* const b = row(plan.b, plan.b_strides);
  const T* const c = row(plan.c, plan.c_strides);
  T* const out = static_cast<T*>(plan.out) + RowOffset(plan.sizes, plan.out_strides, place.row);
  float first[kWords][kWidth];
  float second[kWords][kWidth];
  float third[kWords][kWidth];
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const std::uint32_t word = place.word + i * blockDim.x;
    if (word < place.end) {
      const std::int64_t at = std::int64_t{word} * kWidth;
      Load<T, kWidth>(a + at, first[i]);
      Load<T, kWidth>(b + at, second[i]);
      Load<T, kWidth>(c + at, third[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const std::uint32_t word = place.word + i * blockDim.x;
    if (word < place.end) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        first[i][j] = fmaf(first[i][j], second[i][j], third[i][j]);
      }
      Store<T, kWidth>(out + std::int64_t{word} * kWidth, first[i]);
    }
  }
}

template <class Plan>
cuda::LaunchConfig TileConfig(const Plan& plan) {
  return {.grid = plan.tiles.blocks, .block = dim3(plan.tiles.threads_x, plan.tiles.threads_y)};
}

}  // namespace

Status LaunchAddGelu(const AddGeluPlan& plan, cuda::StreamRef stream) {
  return WithFloatType(plan.dtype, [&](auto number) {
    using T = decltype(number);
    return cuda::Launch(stream, "fused_add_gelu", TileConfig(plan),
                        plan.wide ? AddGelu<T, kPacked<T>> : AddGelu<T, 1>, plan);
  });
}

Status LaunchMulAdd(const MulAddPlan& plan, cuda::StreamRef stream) {
  return WithFloatType(plan.dtype, [&](auto number) {
    using T = decltype(number);
    return cuda::Launch(stream, "element_wise_mul_add", TileConfig(plan),
                        plan.wide ? MulAdd<T, kPacked<T>> : MulAdd<T, 1>, plan);
  });
}

}  // namespace ferry::kernels
