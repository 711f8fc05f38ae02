// Element formats in device code: conversion of single elements and of 16-byte words.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ferry/cuda/prim/packed.cuh"
#include "ferry/kernels/tensor.h"

namespace ferry::kernels {

namespace prim = cuda::prim;

using Bfloat16 = __nv_bfloat16;
using Float16 = __half;

__device__ __forceinline__ float ToFloat(float value) { return value; }
__device__ __forceinline__ float ToFloat(Float16 value) { return __half2float(value); }
__device__ __forceinline__ float ToFloat(Bfloat16 value) { return __bfloat162float(value); }

// Rounds to nearest even, as number.h does.
template <class T>
__device__ __forceinline__ T FromFloat(float value);
template <>
__device__ __forceinline__ float FromFloat<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ Float16 FromFloat<Float16>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ __forceinline__ Bfloat16 FromFloat<Bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}
// The value after a store and a load in this format.
template <class T>
__device__ __forceinline__ float RoundTo(float value) {
  return ToFloat(FromFloat<T>(value));
}

// Converts to the bits of E4M3, saturating at the largest number.
__device__ __forceinline__ std::uint8_t ToE4m3(float value) {
  return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
}
__device__ __forceinline__ float FromE4m3(std::uint8_t bits) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(bits, __NV_E4M3)));
}

// Number of elements in 16 bytes.
template <class T>
inline constexpr int kPacked = 16 / static_cast<int>(sizeof(T));

// The pairs of 16-bit numbers in a word, the lower half first. CUDA's types of pairs can only be
// copied from and to their bits.
__device__ __forceinline__ float2 PairOf(std::uint32_t word, Bfloat16 /*format*/) {
  // bf16 is the upper half of a float.
  return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000U)};
}
__device__ __forceinline__ float2 PairOf(std::uint32_t word, Float16 /*format*/) {
  __half2 pair;
  memcpy(&pair, &word, sizeof word);
  return __half22float2(pair);
}
__device__ __forceinline__ std::uint32_t WordOf(float low, float high, Bfloat16 /*format*/) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  std::uint32_t word;
  memcpy(&word, &pair, sizeof word);
  return word;
}
__device__ __forceinline__ std::uint32_t WordOf(float low, float high, Float16 /*format*/) {
  const __half2 pair = __floats2half2_rn(low, high);
  std::uint32_t word;
  memcpy(&word, &pair, sizeof word);
  return word;
}

template <class T>
__device__ __forceinline__ void Unpack(const uint4& word, float (&values)[kPacked<T>]) {
  const std::uint32_t words[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      values[i] = __uint_as_float(words[i]);
    } else {
      const float2 pair = PairOf(words[i], T{});
      values[2 * i] = pair.x;
      values[2 * i + 1] = pair.y;
    }
  }
}
template <class T>
__device__ __forceinline__ uint4 Pack(const float (&values)[kPacked<T>]) {
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      words[i] = __float_as_uint(values[i]);
    } else {
      words[i] = WordOf(values[2 * i], values[2 * i + 1], T{});
    }
  }
  return {words[0], words[1], words[2], words[3]};
}

// The unit of one access, as stored in memory: 16 bytes or one element. It needs half the registers
// of its numbers as floats.
template <class T, int kWidth>
using Word = std::conditional_t<kWidth == 1, T, uint4>;

template <class T, int kWidth>
__device__ __forceinline__ Word<T, kWidth> LoadWord(const T* from) {
  if constexpr (kWidth == 1) {
    return *from;
  } else {
    return prim::Load16(from);
  }
}
// The same through prim::LoadAhead16(), which the compiler does not move behind a branch.
template <class T, int kWidth>
__device__ __forceinline__ Word<T, kWidth> LoadWordAhead(const T* from) {
  if constexpr (kWidth == 1) {
    return *from;
  } else {
    return prim::LoadAhead16(from);
  }
}
// Loads memory that no thread writes while the kernel runs and other threads read too.
template <class T, int kWidth>
__device__ __forceinline__ Word<T, kWidth> LoadSharedWord(const T* from) {
  if constexpr (kWidth == 1) {
    return __ldg(from);
  } else {
    return prim::LoadShared16(from);
  }
}
template <class T, int kWidth>
__device__ __forceinline__ void NumbersOf(const Word<T, kWidth>& word, float (&values)[kWidth]) {
  if constexpr (kWidth == 1) {
    values[0] = ToFloat(word);
  } else {
    Unpack<T>(word, values);
  }
}

// The products of two words' numbers, each rounded once, as RoundTo<T>(a * b) does: a float holds
// the product of two 16-bit numbers exactly.
__device__ __forceinline__ std::uint32_t ProductOf(std::uint32_t a, std::uint32_t b,
                                                   Bfloat16 /*format*/) {
  __nv_bfloat162 pairs[2];
  memcpy(&pairs[0], &a, sizeof a);
  memcpy(&pairs[1], &b, sizeof b);
  pairs[0] = __hmul2_rn(pairs[0], pairs[1]);
  memcpy(&a, &pairs[0], sizeof a);
  return a;
}
__device__ __forceinline__ std::uint32_t ProductOf(std::uint32_t a, std::uint32_t b,
                                                   Float16 /*format*/) {
  __half2 pairs[2];
  memcpy(&pairs[0], &a, sizeof a);
  memcpy(&pairs[1], &b, sizeof b);
  pairs[0] = __hmul2_rn(pairs[0], pairs[1]);
  memcpy(&a, &pairs[0], sizeof a);
  return a;
}
__device__ __forceinline__ std::uint32_t ProductOf(std::uint32_t a, std::uint32_t b,
                                                   float /*format*/) {
  return __float_as_uint(__uint_as_float(a) * __uint_as_float(b));
}
// The same for two 16-byte words.
template <class T>
__device__ __forceinline__ uint4 ProductsOf(const uint4& a, const uint4& b) {
  return {ProductOf(a.x, b.x, T{}), ProductOf(a.y, b.y, T{}), ProductOf(a.z, b.z, T{}),
          ProductOf(a.w, b.w, T{})};
}

// Loads kWidth elements as floats: either all elements of 16 aligned bytes, or one.
template <class T, int kWidth>
__device__ __forceinline__ void Load(const T* from, float (&values)[kWidth]) {
  static_assert(kWidth == kPacked<T> || kWidth == 1, "16 bytes or one element");
  if constexpr (kWidth == 1) {
    values[0] = ToFloat(*from);
  } else {
    Unpack<T>(prim::Load16(from), values);
  }
}
template <class T, int kWidth>
__device__ __forceinline__ void Store(T* to, const float (&values)[kWidth]) {
  static_assert(kWidth == kPacked<T> || kWidth == 1, "16 bytes or one element");
  if constexpr (kWidth == 1) {
    *to = FromFloat<T>(values[0]);
  } else {
    prim::Store16(to, Pack<T>(values));
  }
}
// Loads memory that no thread writes while the kernel runs and other threads read too.
template <class T, int kWidth>
__device__ __forceinline__ void LoadWeights(const T* from, float (&values)[kWidth]) {
  static_assert(kWidth == kPacked<T> || kWidth == 1, "16 bytes or one element");
  if constexpr (kWidth == 1) {
    values[0] = ToFloat(__ldg(from));
  } else {
    Unpack<T>(prim::LoadShared16(from), values);
  }
}

// Loads kWidth fp32 values that no thread writes while the kernel runs: one, or a multiple of four
// from an address that is a multiple of 16.
template <int kWidth>
__device__ __forceinline__ void LoadFloats(const float* from, float (&values)[kWidth]) {
  static_assert(kWidth == 1 || kWidth % 4 == 0, "words of 16 bytes or one float");
  if constexpr (kWidth == 1) {
    values[0] = __ldg(from);
  } else {
#pragma unroll
    for (int i = 0; i < kWidth / 4; ++i) {
      float four[4];
      LoadWeights<float, 4>(from + 4 * i, four);
#pragma unroll
      for (int j = 0; j < 4; ++j) values[4 * i + j] = four[j];
    }
  }
}

// Calls function(T{}) with the type of this format: float, Float16 or Bfloat16.
template <class Function>
auto WithFloatType(DType dtype, const Function& function) {
  switch (dtype) {
    case DType::kFloat16: return function(Float16{});
    case DType::kBfloat16: return function(Bfloat16{});
    default: return function(float{});
  }
}

}  // namespace ferry::kernels
