// The tanh of soft caps in fp32, the same on GPUs and, for tests, on the host.
#pragma once
#include <cmath>

#ifdef __CUDACC__
#define FERRY_SOFT_CAP_BOTH __host__ __device__ inline
#else
#define FERRY_SOFT_CAP_BOTH inline
#endif

namespace ferry::kernels {

inline constexpr float kTwiceLog2E = 2.88539008177792681F;  // 2^(kTwiceLog2E * x) = e^2x
// Where the series of SoftCapTanh() and its other form have the same error.
inline constexpr float kSoftCapNear = 0.17F;

// tanh(x), where `part` is 1 / (1 + e^2x). The relative error is below 2.5e-6 if e^2x and the
// reciprocal are within 2^-22 and 2^-23 of theirs, and below 2^-23 for |x| < 0.07.
FERRY_SOFT_CAP_BOTH float SoftCapTanh(float x, float part) {
  // 1 - 2 * part cancels near 0: alone it has an absolute error of 2^-22, and softcap times that
  // exceeds the differences of scores where a softcap is large. Near 0 the series is as good as
  // fp32: x - x^3 / 3 + 2 x^5 / 15.
  const float square = x * x;
  const float near = x * fmaf(square, fmaf(square, 2.0F / 15, -1.0F / 3), 1.0F);
  return fabsf(x) < kSoftCapNear ? near : fmaf(-2.0F, part, 1.0F);
}

}  // namespace ferry::kernels
