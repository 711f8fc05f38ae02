// Activations in device code; their formulas are in activation.h. 16-bit results use the
// instructions for 2^x and 1 / x, whose errors are far below the last bit of such a result: two
// instructions of the slow unit for each element, and no branches for subnormal numbers, which
// would as much as double the cost of an element.
#pragma once
#include "ferry/cuda/prim/float_math.cuh"

namespace ferry::kernels {

inline constexpr float kLog2E = 1.4426950408889634F;

// x / (1 + 2^z), for results of 16 bits.
__device__ __forceinline__ float OverOnePlusExp2(float x, float z) {
  return x * cuda::prim::Reciprocal(1.0F + cuda::prim::Exp2(z));
}

template <class T>
__device__ __forceinline__ float Silu(float x) {
  if constexpr (sizeof(T) == 4) {
    return x / (1.0F + expf(-x));
  } else {
    return OverOnePlusExp2(x, -kLog2E * x);
  }
}
template <class T>
__device__ __forceinline__ float Gelu(float x) {
  return x * normcdff(x);
}
// The same function by the expression of torch's kernel, so that fp32 results agree to the last
// bits. Below -2.5 the sum cancels, and both lose the same digits, which Gelu() keeps.
__device__ __forceinline__ float GeluErf(float x) {
  constexpr float kRootOfHalf = 0.70710678118654752F;
  return x * 0.5F * (1.0F + erff(x * kRootOfHalf));
}
template <class T>
__device__ __forceinline__ float GeluTanh(float x) {
  constexpr float kTwoRoots = 2.0F * 0.7978845608028654F;  // 2 sqrt(2 / pi)
  constexpr float kCube = 0.044715F;
  if constexpr (sizeof(T) == 4) {
    return x / (1.0F + expf(-kTwoRoots * x * fmaf(kCube * x, x, 1.0F)));
  } else {
    constexpr float kLinear = -kLog2E * kTwoRoots;
    return OverOnePlusExp2(x, x * fmaf(kLinear * kCube * x, x, kLinear));
  }
}

}  // namespace ferry::kernels
