// Attention by its definition, in double, for tests.

#include "ferry/kernels/testing/attention_formula.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "ferry/kernels/number.h"

namespace ferry::kernels {

Rounding RoundingTo(DType dtype) {
  return [dtype](double value) {
    return static_cast<double>(RoundTo(dtype, static_cast<float>(value)));
  };
}

void AddAttention(std::span<const double> query, const SeenTokens& seen, double scale,
                  const Rounding& rounded, std::vector<double>* rows) {
  FormulaExtras extras;
  extras.scale = scale;
  AddAttentionWithExtras(query, seen, extras, rounded, rows);
}

double AddAttentionWithExtras(std::span<const double> query, const SeenTokens& seen,
                              const FormulaExtras& extras, const Rounding& rounded,
                              std::vector<double>* rows) {
  std::vector<double> row(query.size(), 0.0);
  double all = extras.sink != nullptr ? rounded(std::exp(*extras.sink)) : 0;
  for (const std::size_t token : seen.tokens) {
    const auto key = seen.keys.subspan(token, query.size());
    const auto value = seen.values.subspan(token, query.size());
    double score = extras.scale * std::inner_product(query.begin(), query.end(), key.begin(), 0.0);
    if (extras.softcap > 0) score = extras.softcap * std::tanh(score / extras.softcap);
    const double weight = rounded(std::exp(rounded(score)));
    all += weight;
    for (std::size_t d = 0; d < row.size(); ++d) row[d] += weight * value[d];
  }
  for (const double sum : row) {
    rows->push_back(all > 0 ? rounded(sum / all * extras.v_scale) : 0.0);
  }
  return std::log(all);
}

void ExpectEachLse(const std::vector<double>& got, const std::vector<double>& right,
                   const std::string& name) {
  ASSERT_EQ(got.size(), right.size()) << name;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isinf(right[i])) {
      ASSERT_EQ(got[i], right[i]) << name << " " << i;
    } else {
      ASSERT_NEAR(got[i], right[i], 1e-4) << name << " " << i;
    }
  }
}

}  // namespace ferry::kernels
