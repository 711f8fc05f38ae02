// Rotation of one pair of numbers, with identical results on the host and on GPUs.
#pragma once
#include <cmath>

namespace ferry::kernels {

// Turns a pair by an angle: the step of rotary embeddings. The same to the last bit in every op, on
// GPUs and on the CPU: fmaf() says which product is rounded by itself, which compilers choose where
// a * b - c * d is written, and one way here, another way there.
#ifdef __CUDACC__
__host__ __device__
#endif
    inline void
    RotatePair(float cos, float sin, float* low, float* high) noexcept {
  const float was = *low;
  *low = fmaf(was, cos, -(*high * sin));
  *high = fmaf(*high, cos, was * sin);
}

}  // namespace ferry::kernels
