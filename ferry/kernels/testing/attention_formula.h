// Attention by its definition, as the reference of tests.
#pragma once
#include <cstddef>
#include <functional>
#include <span>
#include <string>
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

// What attention can do beyond that.
struct FormulaExtras {
  double scale = 1;
  double v_scale = 1;
  double softcap = 0;            // 0: none
  const double* sink = nullptr;  // null: none
};
// As AddAttention(), and returns the natural logarithm of the sum of exp(score): -inf for no
// scores.
double AddAttentionWithExtras(std::span<const double> query, const SeenTokens& seen,
                              const FormulaExtras& extras, const Rounding& rounded,
                              std::vector<double>* rows);

// The lse that an op has written: each within 1e-4 of the right one, or infinite as it is.
void ExpectEachLse(const std::vector<double>& got, const std::vector<double>& right,
                   const std::string& name);

}  // namespace ferry::kernels
