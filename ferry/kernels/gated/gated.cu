// Kernel of the gated activations.

#include "ferry/cuda/launch.cuh"
#include "ferry/cuda/prim/grid_order.cuh"
#include "ferry/kernels/activation.cuh"
#include "ferry/kernels/device_number.cuh"
#include "ferry/kernels/gated/gated_plan.h"
#include "ferry/kernels/op.h"
#include "ferry/kernels/tiles.cuh"

namespace ferry::kernels {
namespace {

template <class T, Gate kGate>
__device__ __forceinline__ float Gated(float x) {
  if constexpr (kGate == Gate::kSilu) {
    return Silu<T>(x);
  } else if constexpr (kGate == Gate::kGelu) {
    return Gelu<T>(x);
  } else {
    static_assert(kGate == Gate::kGeluTanh, "this gate has no formula");
    return GeluTanh<T>(x);
  }
}

// A thread's word of either half. Both loads are in flight before the store.
template <class T, int kWidth, Gate kGate>
__global__ void __launch_bounds__(kTileThreads) GatedRows(const __grid_constant__ GatedPlan plan) {
  prim::GridDependencySynchronize();
  prim::LetNextGridBegin();
  const TilePlace place = PlaceInTile(plan.tiles, 1);
  if (place.word >= place.end) return;
  const std::int64_t at = std::int64_t{place.word} * kWidth;
  const std::int64_t x = RowOffset(plan.sizes, plan.x_strides, place.row) + at;
  const Word<T, kWidth> gate_word = LoadWord<T, kWidth>(static_cast<const T*>(plan.gate) + x);
  const Word<T, kWidth> up_word = LoadWord<T, kWidth>(static_cast<const T*>(plan.up) + x);
  float gate[kWidth];
  float up[kWidth];
  NumbersOf<T, kWidth>(gate_word, gate);
  NumbersOf<T, kWidth>(up_word, up);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) gate[j] = Gated<T, kGate>(gate[j]) * up[j];
  Store<T, kWidth>(
      static_cast<T*>(plan.out) + RowOffset(plan.sizes, plan.out_strides, place.row) + at, gate);
}

using GatedKernel = void (*)(GatedPlan);

// Null for a gate without a kernel.
template <class T, int kWidth>
GatedKernel ChosenGate(Gate gate) {
  switch (gate) {
    case Gate::kSilu: return GatedRows<T, kWidth, Gate::kSilu>;
    case Gate::kGelu: return GatedRows<T, kWidth, Gate::kGelu>;
    case Gate::kGeluTanh: return GatedRows<T, kWidth, Gate::kGeluTanh>;
  }
  return nullptr;
}

}  // namespace

Status LaunchGated(const GatedPlan& plan, cuda::StreamRef stream) {
  const cuda::LaunchConfig config{.grid = plan.tiles.blocks,
                                  .block = dim3(plan.tiles.threads_x, plan.tiles.threads_y),
                                  .early = true};
  return WithFloatType(plan.dtype, [&](auto number) {
    using T = decltype(number);
    const char* const op = NameOf(plan.activation);
    const GatedKernel kernel =
        plan.wide ? ChosenGate<T, kPacked<T>>(plan.activation) : ChosenGate<T, 1>(plan.activation);
    return kernel == nullptr ? NoDeviceCode(op) : cuda::Launch(stream, op, config, kernel, plan);
  });
}

}  // namespace ferry::kernels
