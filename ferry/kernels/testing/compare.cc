#include "ferry/kernels/testing/compare.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "ferry/core/random.h"

namespace ferry::kernels {

std::uint64_t TestSeed() {
  static const std::uint64_t seed = [] {
    const char* const given = std::getenv("FERRY_TEST_SEED");
    const std::uint64_t chosen =
        given != nullptr ? std::strtoull(given, nullptr, 10) : RandomU64() >> 32;
    std::printf("FERRY_TEST_SEED=%" PRIu64 " does this again\n", chosen);
    return chosen;
  }();
  return seed;
}

double RoundingOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return std::ldexp(1.0, -11);
    case DType::kBfloat16: return std::ldexp(1.0, -8);
    case DType::kFloat8E4m3: return std::ldexp(1.0, -4);
    default: return std::ldexp(1.0, -24);
  }
}

void ExpectAsGoodAsNaive(const Outcome& outcome, DType dtype, const std::string& name) {
  ASSERT_EQ(outcome.got.size(), outcome.right.size()) << name;
  ASSERT_EQ(outcome.naive.size(), outcome.right.size()) << name;
  double greatest = 0;
  double naive_error = 0;
  double error = 0;
  std::size_t worst = 0;
  for (std::size_t i = 0; i < outcome.right.size(); ++i) {
    const double right = outcome.right[i];
    if (!std::isfinite(right)) {
      const bool same = std::isnan(right) ? std::isnan(outcome.got[i]) : outcome.got[i] == right;
      ASSERT_TRUE(same) << name << ": element " << i << " is " << outcome.got[i] << ", not "
                        << right;
      continue;
    }
    ASSERT_TRUE(std::isfinite(outcome.got[i]))
        << name << ": element " << i << " is " << outcome.got[i] << ", not " << right;
    greatest = std::max(greatest, std::fabs(right));
    naive_error = std::max(naive_error, std::fabs(outcome.naive[i] - right));
    if (const double here = std::fabs(outcome.got[i] - right); here > error) {
      error = here;
      worst = i;
    }
  }
  const double roundings = dtype == DType::kFloat32 ? 16 : 1;
  const double allowed = 2 * naive_error + roundings * RoundingOf(dtype) * greatest;
  EXPECT_LE(error, allowed) << name << ", " << NameOf(dtype) << ": element " << worst << " is "
                            << (outcome.got.empty() ? 0 : outcome.got[worst]) << ", not "
                            << (outcome.got.empty() ? 0 : outcome.right[worst])
                            << "; the greatest error in the format itself is " << naive_error;
}

}  // namespace ferry::kernels
