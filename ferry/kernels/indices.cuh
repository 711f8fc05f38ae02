// Device loads of slots, positions and rows of angles, in the types that engines keep them in.
#pragma once
#include "ferry/cuda/prim/packed.cuh"
#include "ferry/kernels/device_number.cuh"
#include "ferry/kernels/indices.h"

namespace ferry::kernels {

// The branch is the same for all threads of the grid.
__device__ __forceinline__ std::int64_t LoadIndex(const Indices& indices, std::uint32_t at) {
  if (indices.wide) {
    return prim::LoadSharedAhead(static_cast<const std::int64_t*>(indices.data) + at);
  }
  return prim::LoadSharedAhead(static_cast<const std::int32_t*>(indices.data) + at);
}

// As int32, which saves registers: caches have at most 2^31 - 1 slots, so that a slot beyond int32
// stays one that they do not have.
__device__ __forceinline__ std::int32_t LoadSlot(const Indices& slots, std::uint32_t at) {
  const std::int64_t slot = LoadIndex(slots, at);
  if (slot < 0) return -1;
  return static_cast<std::int32_t>(slot < INT32_MAX ? slot : INT32_MAX);
}

// kWidth numbers of a row of T, one or a multiple of four from an address that is a multiple of
// their bytes.
template <class T, int kWidth>
__device__ __forceinline__ void LoadNarrowAngles(const T* from, float (&values)[kWidth]) {
  if constexpr (kWidth == 1) {
    values[0] = ToFloat(__ldg(from));
  } else {
#pragma unroll
    for (int i = 0; i < kWidth / 4; ++i) {
      // From T* to the words of which it is made.
      const uint2 words = __ldg(static_cast<const uint2*>(static_cast<const void*>(from)) + i);
      float eight[8];  // the upper four are not used
      Unpack<T>(uint4{words.x, words.y, 0, 0}, eight);
#pragma unroll
      for (int j = 0; j < 4; ++j) values[4 * i + j] = eight[j];
    }
  }
}

// Loads kWidth cosines or sines from element `at` of a table on, as LoadFloats().
template <int kWidth>
__device__ __forceinline__ void LoadAnglesAt(const void* table, DType dtype, std::int64_t at,
                                             float (&values)[kWidth]) {
  switch (dtype) {
    case DType::kBfloat16:
      return LoadNarrowAngles(static_cast<const Bfloat16*>(table) + at, values);
    case DType::kFloat16: return LoadNarrowAngles(static_cast<const Float16*>(table) + at, values);
    default: return LoadFloats<kWidth>(static_cast<const float*>(table) + at, values);
  }
}

// The same for a word of kWidth numbers that are pairs of neighbours: kWidth / 2 angles. One angle
// at a time where they are fewer than an access of LoadAnglesAt() has.
template <int kAngles>
__device__ __forceinline__ void LoadPairAngles(const void* table, DType dtype, std::int64_t at,
                                               float (&values)[kAngles]) {
  if constexpr (kAngles % 4 == 0) {
    LoadAnglesAt<kAngles>(table, dtype, at, values);
  } else {
#pragma unroll
    for (int i = 0; i < kAngles; ++i) {
      float one[1];
      LoadAnglesAt<1>(table, dtype, at + i, one);
      values[i] = one[0];
    }
  }
}

}  // namespace ferry::kernels
