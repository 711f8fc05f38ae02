// Compares e4m3 results of ops, and the scales that they made, with references in double.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ferry/kernels/testing/compare.h"

namespace ferry::kernels {

// What an op wrote, and the values that it quantised, element by element, in rows of `cols`.
struct QuantOutcome {
  Elements elements;  // got: as e4m3; right and terms: of the values before the scale
  std::int64_t cols = 0;
  Roundings roundings;         // of the values, before they are quantised
  std::vector<double> scales;  // of each row, as given or as the op made them
};

// Each element is within a rounding of e4m3 of value / scale, saturated at 448, and the error of
// the value itself.
void ExpectEachQuantised(const QuantOutcome& outcome, DType dtype, const std::string& name);

// Each scale is max |value| / 448 of its row, bounded and at least kMinQuantScale, within the error
// of the values. `bound` is infinite for none.
void ExpectRowScales(const QuantOutcome& outcome, double bound, DType dtype,
                     const std::string& name);

}  // namespace ferry::kernels
