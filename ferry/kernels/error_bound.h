// Allowed error of an element that an op wrote: a function of the element itself and of its own
// terms, never of other elements (docs/kernels/accuracy.md).
#pragma once
#include <cmath>

#include "ferry/kernels/tensor.h"

namespace ferry::kernels {

// The unit roundoff of the format, relative to the number: 2^-8 for bf16.
inline double RoundingOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return std::ldexp(1.0, -11);
    case DType::kBfloat16: return std::ldexp(1.0, -8);
    case DType::kFloat8E4m3: return std::ldexp(1.0, -4);
    default: return std::ldexp(1.0, -24);
  }
}

// Absolute precision near zero: the spacing of the format's subnormal numbers, or the smallest
// normal number where devices flush subnormal results to zero.
inline double SmallestOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return std::ldexp(1.0, -24);
    case DType::kFloat8E4m3: return std::ldexp(1.0, -9);
    default: return std::ldexp(1.0, -126);
  }
}

// How many times an op rounds to the format.
struct Roundings {
  double of_results = 1;  // to the format, of a value on its way to being the element
  double of_terms = 0;    // to the format, of what is summed up
};

// Allowance for fp32 calculations: CUDA's elementary functions are wrong by some units in the last
// place.
inline constexpr double kRoundingsInFloat32 = 16;

// Largest accepted difference from `right`. `terms` is the sum of the magnitudes of the terms that
// add up to the right value: |a b| + |c| for a * b + c, the sum of |p v| for attention.
inline double AllowedError(double right, double terms, const Roundings& roundings, DType dtype) {
  return RoundingOf(dtype) *
             (roundings.of_results * std::fabs(right) + roundings.of_terms * terms) +
         kRoundingsInFloat32 * RoundingOf(DType::kFloat32) * terms +
         (roundings.of_results + roundings.of_terms) * SmallestOf(dtype);
}

}  // namespace ferry::kernels
