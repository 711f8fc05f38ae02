// Attention by its definition, as the reference of tests.
#pragma once
#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "ferry/kernels/tensor.h"

namespace ferry::kernels {

// Rounds a number to a format, or leaves it as it is.
using Rounding = std::function<double(double)>;
Rounding RoundingTo(DType dtype);
inline double Exactly(double value) { return value; }

// The keys and values that a query sees, as element offsets.
struct SeenTokens {
  std::span<const double> keys;
  std::span<const double> values;
  std::vector<std::size_t> tokens;
};

// Attention by its formula, without subtracting the maximum, so for small scores only; each score,
// weight and sum is `rounded`. Zeros if the query sees no key. Adds a row to `rows`.
void AddAttention(std::span<const double> query, const SeenTokens& seen, double scale,
                  const Rounding& rounded, std::vector<double>* rows);

}  // namespace ferry::kernels
