#include "ferry/cuda/launch.cuh"
#include "ferry/kernels/activation.cuh"
#include "ferry/kernels/device_number.cuh"
#include "ferry/kernels/elementwise/elementwise_plan.h"
#include "ferry/kernels/tiles.cuh"
#include "ferry/prim/grid_order.cuh"

namespace ferry::kernels {
namespace {

template <class T, int kWidth>
__device__ __forceinline__ void StoreGelu(T* to, const Word<T, kWidth>& x,
                                          const float (&bias)[kWidth]) {
  float values[kWidth];
  NumbersOf<T, kWidth>(x, values);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) values[j] = GeluTanh<T>(values[j] + bias[j]);
  Store<T, kWidth>(to, values);
}

// All of a thread's loads are under way before its first store, here and below.
template <class T, int kWidth, int kWords>
__global__ void __launch_bounds__(kTileThreads)
    AddGeluAlong(const __grid_constant__ AddGeluPlan plan) {
  prim::WaitForGridsBefore();
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
      StoreGelu<T, kWidth>(out + std::int64_t{word} * kWidth, words[i], bias);
    }
  }
}

// The bias's word of a thread serves several rows, which are neighbours.
template <class T, int kWidth, int kRows>
__global__ void __launch_bounds__(kTileThreads)
    AddGeluDown(const __grid_constant__ AddGeluPlan plan) {
  prim::WaitForGridsBefore();
  prim::LetNextGridBegin();
  const TilePlace place = PlaceInTile(plan.tiles, 1);
  if (place.word >= place.end) return;
  const std::int64_t at = std::int64_t{place.word} * kWidth;
  const std::uint32_t first = place.row * kRows;
  Word<T, kWidth> words[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (first + i < plan.rows) {
      words[i] = LoadWord<T, kWidth>(static_cast<const T*>(plan.x) +
                                     RowOffset(plan.sizes, plan.x_strides, first + i) + at);
    }
  }
  float bias[kWidth];
  LoadWeights<T, kWidth>(static_cast<const T*>(plan.bias) + at, bias);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (first + i < plan.rows) {
      StoreGelu<T, kWidth>(
          static_cast<T*>(plan.out) + RowOffset(plan.sizes, plan.out_strides, first + i) + at,
          words[i], bias);
    }
  }
}

using AddGeluKernel = void (*)(AddGeluPlan);

template <class T, int kWidth>
AddGeluKernel ChosenAddGelu(AddGeluForm form) {
  switch (form) {
    case AddGeluForm::kOneWord: return AddGeluAlong<T, kWidth, 1>;
    case AddGeluForm::kTwoWords: return AddGeluAlong<T, kWidth, 2>;
    case AddGeluForm::kFourWords: return AddGeluAlong<T, kWidth, 4>;
    case AddGeluForm::kTwoRows: return AddGeluDown<T, kWidth, 2>;
    case AddGeluForm::kFourRows: break;
  }
  return AddGeluDown<T, kWidth, 4>;
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
    cuda::LaunchConfig config = TileConfig(plan);
    config.early = plan.early;
    return cuda::Launch(
        stream, "fused_add_gelu", config,
        plan.wide ? ChosenAddGelu<T, kPacked<T>>(plan.form) : ChosenAddGelu<T, 1>(plan.form), plan);
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
