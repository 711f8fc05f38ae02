// Attention by its definition, as the reference of tests.
#pragma once
#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "ferry/kernels/tensor.h"

namespace ferry::kernels {

// Numbers as they are, or as a format has them.
using Rounding = std::function<double(double)>;
Rounding RoundingTo(DType dtype);
inline double Exactly(double value) { return value; }

// What a query sees: the elements in which its keys, and their values, begin.
struct SeenTokens {
  std::span<const double> keys;
  std::span<const double> values;
  std::vector<std::size_t> tokens;
};

// Attention by its formula, with no maximum taken off, so for small scores only; each score, weight
// and sum is `rounded`. Zeros where nothing is seen. Adds a row to `rows`.
void AddAttention(std::span<const double> query, const SeenTokens& seen, double scale,
                  const Rounding& rounded, std::vector<double>* rows);

}  // namespace ferry::kernels
