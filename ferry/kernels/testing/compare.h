// Compares the results of ops with references, element by element, and supplies seeds.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ferry/kernels/error_bound.h"
#include "ferry/kernels/tensor.h"

namespace ferry::kernels {

// The seed of this run of the program: FERRY_TEST_SEED if set, otherwise a random one, which is
// printed once.
std::uint64_t TestSeed();

// Results of an op, right values and the sums of the magnitudes of their terms, element by element.
struct Elements {
  std::vector<double> got;
  std::vector<double> right;
  std::vector<double> terms;  // see AllowedError()
};
// Describes the element that is furthest beyond AllowedError(); empty if all are right. Where
// `right` is infinite or NaN, `got` must be the same.
std::string FindWrongElement(const Elements& elements, const Roundings& roundings, DType dtype);
void ExpectEachRight(const Elements& elements, const Roundings& roundings, DType dtype,
                     const std::string& name);

// Results of an op, of the same sum computed naively in the op's format, and right values, element
// by element.
struct Outcome {
  std::vector<double> got;
  std::vector<double> naive;
  std::vector<double> right;
};
// For attention, whose errors are sums of many that cancel: of each row of `row` elements by
// itself, so that none is excused by another, the greatest error is at most twice that of the naive
// row, or six roundings of the root of the row's mean square, whichever is more. Returns what is
// wrong with the worst of the rows; empty where all are right.
std::string FindWrongRow(const Outcome& outcome, std::int64_t row, DType dtype);
void ExpectRowsAsGoodAsNaive(const Outcome& outcome, std::int64_t row, DType dtype,
                             const std::string& name);

// Sizes of rows that tests go through: less and more than a 16-byte access has, a warp, a block; no
// power of two, and just beside one.
inline constexpr std::int64_t kRowSizes[] = {1, 7, 8, 128, 129, 769, 1024, 5125, 8192};
inline constexpr DType kFloatTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBfloat16};

}  // namespace ferry::kernels
