// Rotation of one pair of numbers, with identical results on the host and on GPUs.
#pragma once
#include <cmath>
#include <cstdint>

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

// The elements of a head that angle i turns: halves of what is rotated, as in GPT-NeoX and Llama,
// or neighbours, as in GPT-J.
struct RotaryPair {
  std::uint32_t low;
  std::uint32_t high;
};
#ifdef __CUDACC__
__host__ __device__
#endif
    inline RotaryPair
    RotaryPairOf(bool is_neox, std::uint32_t half, std::uint32_t i) noexcept {
  if (is_neox) return {i, half + i};
  return {2 * i, 2 * i + 1};
}

}  // namespace ferry::kernels
