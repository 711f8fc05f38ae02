// Rotation of a thread's words of both halves of a head, for pairs of halves and of neighbours.
#pragma once
#include "ferry/kernels/indices.cuh"
#include "ferry/kernels/rotation.h"

namespace ferry::kernels {

// Where the angles of a token are: in a row of a table, half of what is rotated cosines and as many
// sines.
struct AngleRow {
  const void* table;
  DType dtype;
  std::int64_t row;  // element
  std::uint32_t half;
};

// The angles of a thread's words of both halves, from element `at` of a half on. Pairs of
// neighbours have both their numbers in one word: half of the angles are those of the word of the
// first half, the others of that of the second.
template <bool kNeox, int kWidth>
__device__ __forceinline__ void LoadWordAngles(const AngleRow& angles, std::uint32_t at,
                                               float (&cos)[kWidth], float (&sin)[kWidth]) {
  const std::int64_t sines = angles.row + angles.half;
  if constexpr (kNeox) {
    LoadAnglesAt<kWidth>(angles.table, angles.dtype, angles.row + at, cos);
    LoadAnglesAt<kWidth>(angles.table, angles.dtype, sines + at, sin);
  } else {
    constexpr int kOfWord = kWidth / 2;
    const std::uint32_t places[2] = {at / 2, (angles.half + at) / 2};
#pragma unroll
    for (int word = 0; word < 2; ++word) {
      float some_cos[kOfWord];
      float some_sin[kOfWord];
      LoadPairAngles<kOfWord>(angles.table, angles.dtype, angles.row + places[word], some_cos);
      LoadPairAngles<kOfWord>(angles.table, angles.dtype, sines + places[word], some_sin);
#pragma unroll
      for (int j = 0; j < kOfWord; ++j) {
        cos[word * kOfWord + j] = some_cos[j];
        sin[word * kOfWord + j] = some_sin[j];
      }
    }
  }
}

template <bool kNeox, int kWidth>
__device__ __forceinline__ void TurnWords(const float (&cos)[kWidth], const float (&sin)[kWidth],
                                          float (&low)[kWidth], float (&high)[kWidth]) {
  if constexpr (kNeox) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) RotatePair(cos[j], sin[j], &low[j], &high[j]);
  } else {
    constexpr int kOfWord = kWidth / 2;
#pragma unroll
    for (int j = 0; j < kOfWord; ++j) {
      RotatePair(cos[j], sin[j], &low[2 * j], &low[2 * j + 1]);
      RotatePair(cos[kOfWord + j], sin[kOfWord + j], &high[2 * j], &high[2 * j + 1]);
    }
  }
}

}  // namespace ferry::kernels
