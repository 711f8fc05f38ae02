#pragma once

// Activations in device code; their formulas are in activation.h. For results of 16 bits by the
// fast forms of exp and division, whose errors are far below such a result's last bit.
namespace ferry::kernels {

// x * sigmoid(y).
template <class T>
__device__ __forceinline__ float TimesSigmoid(float x, float y) {
  if constexpr (sizeof(T) == 4) {
    return x / (1.0F + expf(-y));
  } else {
    return __fdividef(x, 1.0F + __expf(-y));
  }
}

template <class T>
__device__ __forceinline__ float Silu(float x) {
  return TimesSigmoid<T>(x, x);
}
template <class T>
__device__ __forceinline__ float Gelu(float x) {
  return x * normcdff(x);
}
template <class T>
__device__ __forceinline__ float GeluTanh(float x) {
  constexpr float kTwoRoots = 2.0F * 0.7978845608028654F;  // 2 sqrt(2 / pi)
  return TimesSigmoid<T>(x, kTwoRoots * x * fmaf(0.044715F * x, x, 1.0F));
}

}  // namespace ferry::kernels
