// Attention by its definition, in double, for tests.

#include "ferry/kernels/testing/attention_formula.h"

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
  std::vector<double> row(query.size(), 0.0);
  double all = 0;
  for (const std::size_t token : seen.tokens) {
    const auto key = seen.keys.subspan(token, query.size());
    const auto value = seen.values.subspan(token, query.size());
    const double score = std::inner_product(query.begin(), query.end(), key.begin(), 0.0);
    const double weight = rounded(std::exp(rounded(score * scale)));
    all += weight;
    for (std::size_t d = 0; d < row.size(); ++d) row[d] += weight * value[d];
  }
  for (const double sum : row) rows->push_back(all > 0 ? rounded(sum / all) : 0.0);
}

}  // namespace ferry::kernels
