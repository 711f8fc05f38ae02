// Implements the element-by-element comparison of tests.

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
  double error = 0;       // infinite if one of the two is not a number
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

std::string FindWrongElement(const Elements& elements, const Roundings& roundings, DType dtype) {
  const std::size_t count = elements.right.size();
  if (elements.got.size() != count || elements.terms.size() != count) {
    return fmt::format("{} elements, {} right ones and terms of {}", elements.got.size(), count,
                       elements.terms.size());
  }
  std::string wrong;
  double most = 1;
  for (std::size_t i = 0; i < count; ++i) {
    const double right = elements.right[i];
    const double error = ErrorOf(elements.got[i], right);
    const double allowed =
        std::isfinite(right) ? AllowedError(right, elements.terms[i], roundings, dtype) : 0;
    if (error <= allowed) continue;
    const double times = allowed > 0 ? error / allowed : HUGE_VAL;
    if (times < most) continue;
    most = times;
    wrong = fmt::format("{}: element {} is {}, not {}; it may be off by {}", NameOf(dtype), i,
                        elements.got[i], right, allowed);
  }
  return wrong;
}

void ExpectEachRight(const Elements& elements, const Roundings& roundings, DType dtype,
                     const std::string& name) {
  const std::string wrong = FindWrongElement(elements, roundings, dtype);
  EXPECT_TRUE(wrong.empty()) << name << ": " << wrong;
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
