// Implements the comparison of e4m3 results.

#include "ferry/kernels/testing/quant_compare.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ferry/kernels/quant.h"

namespace ferry::kernels {
namespace {

constexpr double kLargest = 448;

}  // namespace

void ExpectEachQuantised(const QuantOutcome& outcome, DType dtype, const std::string& name) {
  const Elements& all = outcome.elements;
  ASSERT_EQ(all.got.size(), all.right.size()) << name;
  for (std::size_t i = 0; i < all.right.size(); ++i) {
    const double scale = outcome.scales[i / static_cast<std::size_t>(outcome.cols)];
    const double right = std::clamp(all.right[i] / scale, -kLargest, kLargest);
    const double before =
        AllowedError(all.right[i], all.terms[i], outcome.roundings, dtype) / std::fabs(scale);
    const double allowed =
        AllowedError(right, std::fabs(right), {}, DType::kFloat8E4m3) + before * 1.0625;
    ASSERT_LE(std::fabs(all.got[i] - right), allowed)
        << name << ": element " << i << " is " << all.got[i] << ", not " << right;
  }
}

void ExpectRowScales(const QuantOutcome& outcome, double bound, DType dtype,
                     const std::string& name) {
  const auto cols = static_cast<std::size_t>(outcome.cols);
  const Elements& all = outcome.elements;
  for (std::size_t row = 0; row < outcome.scales.size(); ++row) {
    double largest = 0;
    double allowed = 0;
    for (std::size_t i = row * cols; i < (row + 1) * cols; ++i) {
      largest = std::max(largest, std::fabs(all.right[i]));
      allowed =
          std::max(allowed, AllowedError(all.right[i], all.terms[i], outcome.roundings, dtype));
    }
    const double right =
        std::max(std::min(largest, bound) / kLargest, static_cast<double>(kMinQuantScale));
    ASSERT_NEAR(outcome.scales[row], right, allowed / kLargest + 1e-6 * right)
        << name << ": row " << row;
  }
}

}  // namespace ferry::kernels
