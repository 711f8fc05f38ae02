// Allowed error of an element that an op wrote: a function of the element itself and of its own
// terms, never of other elements (docs/kernels/accuracy.md).
#pragma once
#include <cmath>

#include "ferry/kernels/tensor.h"

namespace ferry::kernels {

// The unit roundoff of the format, as a part of a number: 2^-8 for bf16.
inline double RoundingOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return std::ldexp(1.0, -11);
    case DType::kBfloat16: return std::ldexp(1.0, -8);
    case DType::kFloat8E4m3: return std::ldexp(1.0, -4);
    default: return std::ldexp(1.0, -24);
  }
}

// Below it the format has no relative precision, or the device makes zeros of what is there.
inline double SmallestOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return std::ldexp(1.0, -24);
    case DType::kFloat8E4m3: return std::ldexp(1.0, -9);
    default: return std::ldexp(1.0, -126);
  }
}

struct Roundings {
  double of_results = 1;  // to the format, of a value on its way to being the element
  double of_terms = 0;    // to the format, of what is summed up
};

// Of calculations in fp32, of which the elementary functions of CUDA are wrong by some units.
inline constexpr double kRoundingsInFloat32 = 16;

// `terms`: the sum of the magnitudes of what the right value is the sum of: |a b| + |c| for
// a * b + c, the sum of |p v| for attention.
inline double AllowedError(double right, double terms, const Roundings& roundings, DType dtype) {
  return RoundingOf(dtype) *
             (roundings.of_results * std::fabs(right) + roundings.of_terms * terms) +
         kRoundingsInFloat32 * RoundingOf(DType::kFloat32) * terms +
         (roundings.of_results + roundings.of_terms) * SmallestOf(dtype);
}

}  // namespace ferry::kernels
