// Scales of e4m3 results: one for a whole tensor, or one that is computed for each row.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "ferry/core/result.h"
#include "ferry/kernels/argument.h"

// An element is quantised as E4M3(value / scale), saturating at 448; NaN stays NaN. The division is
// a multiplication by the rounded inverse, on GPUs and on the CPU, so that both give the same bits.
namespace ferry::kernels {

enum class QuantMode : std::uint8_t {
  kStatic,    // `scale` is read: one number for all rows
  kPerToken,  // `scale` is written: one number for each row, max |value| / 448
};

// The scale tensors as kernels receive them.
struct QuantScale {
  const float* given = nullptr;  // kStatic
  float* made = nullptr;         // kPerToken
  const float* bound = nullptr;  // kPerToken, or null: the largest magnitude that a scale is for
};

// The scale arguments of an op:
//   scale     fp32, contiguous: one element for kStatic, one for each row for kPerToken
//   scale_ub  fp32 of one element, or none; only for kPerToken
struct QuantArguments {
  const Argument& scale;
  const Argument& scale_ub;
  QuantMode mode;
  std::int64_t rows;
};
// Rows of the last size; a tensor of one size is one row.
std::int64_t RowsOf(const Tensor& tensor) noexcept;
// Errors: kInvalidArgument for other shapes and types, and where an output overlaps something read.
Result<QuantScale> CheckQuantScale(const QuantArguments& arguments, const Argument& out);

// The type, shape and strides of an e4m3 output of the shape of `like`.
Status CheckQuantOut(const Argument& out, const Argument& like);

inline constexpr float kLargestFloat = std::numeric_limits<float>::max();

// Rows of zeros get this scale and not 0: 448 times it is 1 / 512, as in vLLM.
inline constexpr float kMinQuantScale = 1.0F / (448.0F * 512.0F);

// The scale of a row whose largest magnitude is `largest`, in which NaN does not count. Finite, so
// that an infinite element saturates instead of making its row zeros.
#ifdef __CUDACC__
__host__ __device__
#endif
    inline float
    QuantScaleOf(float largest, const float* bound) noexcept {
  largest = fminf(largest, kLargestFloat);
  if (bound != nullptr) largest = fminf(largest, *bound);
  return fmaxf(largest / 448.0F, kMinQuantScale);
}

// What elements are multiplied by. A scale of 0, or so small that its inverse is infinite, makes
// every number 0; 0 * infinity would make zeros NaN.
#ifdef __CUDACC__
__host__ __device__
#endif
    inline float
    QuantInverseOf(float scale) noexcept {
  const float inverse = 1.0F / scale;
  return fabsf(inverse) > kLargestFloat ? 0.0F : inverse;
}

// Quantises a row on the CPU, to the elements from `at` on of `out`, and writes its scale where one
// is made.
void QuantiseRow(const QuantScale& scale, std::uint32_t row, std::span<const float> values,
                 void* out, std::int64_t at) noexcept;

}  // namespace ferry::kernels
