#include "ferry/kernels/testing/compare.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <span>

#include "ferry/core/random.h"

namespace ferry::kernels {
namespace {

struct JudgedRow {
  double allowed = 0;
  double error = 0;       // infinite where one of the two is no number
  std::size_t worst = 0;  // element of the row
};

double ErrorOf(double got, double right) {
  if (std::isnan(right) ? std::isnan(got) : got == right) return 0;
  const double error = std::fabs(got - right);
  return std::isfinite(error) ? error : HUGE_VAL;
}

JudgedRow JudgeRow(std::span<const double> got, std::span<const double> naive,
                   std::span<const double> right, DType dtype) {
  constexpr double kRoundings = 6;
  JudgedRow judged;
  double naive_error = 0;
  double squares = 0;
  double count = 0;
  for (std::size_t i = 0; i < right.size(); ++i) {
    if (const double here = ErrorOf(got[i], right[i]); here > judged.error) {
      judged.error = here;
      judged.worst = i;
    }
    if (!std::isfinite(right[i])) continue;
    if (std::isfinite(naive[i])) {
      naive_error = std::max(naive_error, std::fabs(naive[i] - right[i]));
    }
    squares += right[i] * right[i];
    ++count;
  }
  const double mean_root = count > 0 ? std::sqrt(squares / count) : 0;
  judged.allowed = std::max(2 * naive_error, kRoundings * RoundingOf(dtype) * mean_root);
  return judged;
}

}  // namespace

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

std::string FindWrongRow(const Outcome& outcome, std::int64_t row, DType dtype) {
  const auto size = static_cast<std::size_t>(row);
  const std::size_t all = outcome.right.size();
  if (outcome.got.size() != all || outcome.naive.size() != all || all % size != 0) {
    return fmt::format("{} elements, {} naive ones and {} right ones are no rows of {}",
                       outcome.got.size(), outcome.naive.size(), all, size);
  }
  std::string wrong;
  double most = 1;
  for (std::size_t at = 0; at < all; at += size) {
    const JudgedRow judged = JudgeRow(std::span(outcome.got).subspan(at, size),
                                      std::span(outcome.naive).subspan(at, size),
                                      std::span(outcome.right).subspan(at, size), dtype);
    if (judged.error <= judged.allowed) continue;
    const double times = judged.allowed > 0 ? judged.error / judged.allowed : HUGE_VAL;
    if (times < most) continue;
    most = times;
    wrong = fmt::format("{}: element {} of row {} is {}, not {}; it may be off by {}",
                        NameOf(dtype), judged.worst, at / size, outcome.got[at + judged.worst],
                        outcome.right[at + judged.worst], judged.allowed);
  }
  return wrong;
}

void ExpectRowsAsGoodAsNaive(const Outcome& outcome, std::int64_t row, DType dtype,
                             const std::string& name) {
  const std::string wrong = FindWrongRow(outcome, row, dtype);
  EXPECT_TRUE(wrong.empty()) << name << ": " << wrong;
}

}  // namespace ferry::kernels
