#include "ferry/cuda/launch.cuh"
#include "ferry/kernels/activation.cuh"
#include "ferry/kernels/device_number.cuh"
#include "ferry/kernels/gated/gated_plan.h"
#include "ferry/kernels/tiles.cuh"

namespace ferry::kernels {
namespace {

template <class T, Gate kGate>
__device__ __forceinline__ float Gated(float x) {
  if constexpr (kGate == Gate::kSilu) return Silu<T>(x);
  if constexpr (kGate == Gate::kGelu) return Gelu<T>(x);
  return GeluTanh<T>(x);
}

// All of a thread's loads are under way before its first store.
template <class T, int kWidth, Gate kGate>
__global__ void __launch_bounds__(kTileThreads) GatedRows(const __grid_constant__ GatedPlan plan) {
  constexpr int kWords = static_cast<int>(kGatedWords);
  const TilePlace place = PlaceInTile(plan.tiles, kWords);
  const std::int64_t x = RowOffset(plan.sizes, plan.x_strides, place.row);
  const T* const gates = static_cast<const T*>(plan.gate) + x;
  const T* const ups = static_cast<const T*>(plan.up) + x;
  T* const out = static_cast<T*>(plan.out) + RowOffset(plan.sizes, plan.out_strides, place.row);
  float gate[kWords][kWidth];
  float up[kWords][kWidth];
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const std::uint32_t word = place.word + i * blockDim.x;
    if (word < place.end) {
      Load<T, kWidth>(gates + std::int64_t{word} * kWidth, gate[i]);
      Load<T, kWidth>(ups + std::int64_t{word} * kWidth, up[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const std::uint32_t word = place.word + i * blockDim.x;
    if (word < place.end) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) gate[i][j] = Gated<T, kGate>(gate[i][j]) * up[i][j];
      Store<T, kWidth>(out + std::int64_t{word} * kWidth, gate[i]);
    }
  }
}

using GatedKernel = void (*)(GatedPlan);

template <class T, int kWidth>
GatedKernel ChosenGate(Gate gate) {
  switch (gate) {
    case Gate::kGelu: return GatedRows<T, kWidth, Gate::kGelu>;
    case Gate::kGeluTanh: return GatedRows<T, kWidth, Gate::kGeluTanh>;
    default: return GatedRows<T, kWidth, Gate::kSilu>;
  }
}

}  // namespace

Status LaunchGated(const GatedPlan& plan, cuda::StreamRef stream) {
  const cuda::LaunchConfig config{.grid = plan.tiles.blocks,
                                  .block = dim3(plan.tiles.threads_x, plan.tiles.threads_y)};
  return WithFloatType(plan.dtype, [&](auto number) {
    using T = decltype(number);
    return cuda::Launch(
        stream, NameOf(plan.activation), config,
        plan.wide ? ChosenGate<T, kPacked<T>>(plan.activation) : ChosenGate<T, 1>(plan.activation),
        plan);
  });
}

}  // namespace ferry::kernels
