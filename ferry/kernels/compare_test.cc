// Tests that the comparison of tests detects errors as a wrong kernel would make them.

#include "ferry/kernels/testing/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "ferry/kernels/number.h"
#include "ferry/kernels/testing/attention_formula.h"

namespace ferry::kernels {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kJudgedHead = 128;

// The errors of a wrong kernel on a sequence: in the tokens that it sees, and in the scale.
struct Mistake {
  const char* name;
  std::function<void(std::vector<std::size_t>* tokens, double* scale)> make;
};

// Queries of sequences of different lengths, of which the longest, the last, is got wrong. The
// others are short: their outputs, and so their errors, are many times as large.
Outcome OutcomeOf(const Mistake& mistake, DType dtype, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  const auto numbers = [&](std::size_t count) {
    std::vector<double> made(count);
    for (double& number : made) number = static_cast<double>(RoundTo(dtype, normal(random)));
    return made;
  };
  Outcome outcome;
  const double right_scale = 1 / std::sqrt(static_cast<double>(kJudgedHead));
  for (const std::size_t length : {1U, 3U, 65U, 400U}) {
    const std::vector<double> keys = numbers(length * kJudgedHead);
    const std::vector<double> values = numbers(length * kJudgedHead);
    SeenTokens seen{.keys = keys, .values = values, .tokens = {}};
    for (std::size_t t = 0; t < length; ++t) seen.tokens.push_back(t * kJudgedHead);
    SeenTokens seen_wrongly = seen;
    double scale = right_scale;
    if (length == 400) mistake.make(&seen_wrongly.tokens, &scale);
    constexpr int kHeads = 8;
    for (int head = 0; head < kHeads; ++head) {
      const std::vector<double> query = numbers(kJudgedHead);
      AddAttention(query, seen, right_scale, Exactly, &outcome.right);
      AddAttention(query, seen, right_scale, RoundingTo(dtype), &outcome.naive);
      AddAttention(query, seen_wrongly, scale, Exactly, &outcome.got);
    }
  }
  for (double& got : outcome.got) got = RoundingTo(dtype)(got);
  return outcome;
}

// Always the same ones: some of a hundred last tokens weigh nothing anywhere.
constexpr std::uint64_t kJudgedSeeds = 6;

TEST(FindWrongRow, FindsWhatAttentionMayGetWrongInOneSequenceOfMany) {
  const std::vector<Mistake> mistakes = {
      {"the last token lost", [](auto* tokens, double*) { tokens->pop_back(); }},
      {"a token lost", [](auto* tokens, double*) { tokens->erase(tokens->begin() + 5); }},
      {"16 tokens lost",
       [](auto* tokens, double*) { tokens->erase(tokens->begin() + 64, tokens->begin() + 80); }},
      {"16 tokens twice",
       [](auto* tokens, double*) { std::copy_n(tokens->begin() + 64, 16, tokens->begin() + 80); }},
      {"scale * 1.05", [](auto*, double* scale) { *scale *= 1.05; }}};
  for (const DType dtype : {DType::kBfloat16, DType::kFloat16}) {
    for (std::uint64_t seed = 0; seed < kJudgedSeeds; ++seed) {
      for (const Mistake& mistake : mistakes) {
        EXPECT_NE(FindWrongRow(OutcomeOf(mistake, dtype, seed), kJudgedHead, dtype), "")
            << mistake.name << ", " << NameOf(dtype) << ", " << seed;
      }
    }
  }
}

TEST(FindWrongRow, TakesWhatIsRightAndRoundedOnce) {
  for (const DType dtype : kFloatTypes) {
    for (std::uint64_t seed = 0; seed < kJudgedSeeds; ++seed) {
      const Mistake none = {"", [](auto*, double*) {}};
      EXPECT_EQ(FindWrongRow(OutcomeOf(none, dtype, seed), kJudgedHead, dtype), "");
    }
  }
}

TEST(FindWrongRow, NoRowIsExcusedByAnother) {
  const std::vector<double> right = {1000, 1000, 1, 1};
  EXPECT_EQ(FindWrongRow({{1001, 1000, 1, 1}, right, right}, 2, DType::kBfloat16), "");
  EXPECT_THAT(FindWrongRow({{1000, 1000, 1, 2}, right, right}, 2, DType::kBfloat16),
              HasSubstr("bf16: element 1 of row 1 is 2, not 1"));
  EXPECT_THAT(FindWrongRow({{1000, 1000, 1, 2}, {1100, 1000, 1, 1}, right}, 2, DType::kBfloat16),
              HasSubstr("element 1 of row 1"));
}

TEST(FindWrongRow, NanAndInfinityAreWantedExactlyWhereTheyAreRight) {
  const std::vector<double> right = {NAN, 1, INFINITY, 1};
  const std::vector<double> naive = {NAN, 1, INFINITY, INFINITY};
  EXPECT_EQ(FindWrongRow({right, naive, right}, 4, DType::kBfloat16), "");
  EXPECT_NE(FindWrongRow({{0, 1, INFINITY, 1}, naive, right}, 4, DType::kBfloat16), "");
  EXPECT_NE(FindWrongRow({{NAN, 1, -INFINITY, 1}, naive, right}, 4, DType::kBfloat16), "");
  EXPECT_NE(FindWrongRow({{NAN, NAN, INFINITY, 1}, naive, right}, 4, DType::kBfloat16), "");
  EXPECT_NE(FindWrongRow({{NAN, 1, INFINITY, INFINITY}, naive, right}, 4, DType::kBfloat16), "");
  EXPECT_THAT(FindWrongRow({{1}, right, right}, 4, DType::kBfloat16), HasSubstr("no rows of 4"));
}

// ---- element by element -------------------------------------------------------------------------

constexpr Roundings kOnce{};

TEST(FindWrongElement, NoElementIsExcusedByTheGreatestOne) {
  const std::vector<double> right = {1000, 1};
  EXPECT_EQ(FindWrongElement({{1003, 1}, right, right}, kOnce, DType::kBfloat16), "");
  EXPECT_THAT(FindWrongElement({{1000, 2}, right, right}, kOnce, DType::kBfloat16),
              HasSubstr("bf16: element 1 is 2, not 1; it may be off by 0.0039"));
  EXPECT_THAT(FindWrongElement({{1000, 1.01}, right, right}, kOnce, DType::kBfloat16),
              HasSubstr("element 1"));
  EXPECT_NE(FindWrongElement({{1005, 1}, right, right}, kOnce, DType::kBfloat16), "");
}

TEST(FindWrongElement, WhatIsRoundedTwiceMayBeOffByTwoRoundings) {
  const Roundings twice{.of_results = 2};
  EXPECT_NE(FindWrongElement({{1.007}, {1}, {1}}, kOnce, DType::kBfloat16), "");
  EXPECT_EQ(FindWrongElement({{1.007}, {1}, {1}}, twice, DType::kBfloat16), "");
  EXPECT_NE(FindWrongElement({{1.009}, {1}, {1}}, twice, DType::kBfloat16), "");
}

// 1 - 0.999 has the errors of 1, and those of 0.001 only where its terms are as small.
TEST(FindWrongElement, WhatCancelsIsJudgedByWhatItWasMadeOf) {
  EXPECT_EQ(FindWrongElement({{0.001 + 1e-6}, {0.001}, {1.999}}, kOnce, DType::kFloat32), "");
  EXPECT_NE(FindWrongElement({{0.001 + 1e-6}, {0.001}, {0.001}}, kOnce, DType::kFloat32), "");
  EXPECT_NE(FindWrongElement({{0.001 + 1e-5}, {0.001}, {1.999}}, kOnce, DType::kFloat32), "");
  const Roundings of_terms{.of_results = 1, .of_terms = 1};
  EXPECT_EQ(FindWrongElement({{0.008}, {0.001}, {1.999}}, of_terms, DType::kBfloat16), "");
  EXPECT_NE(FindWrongElement({{0.008}, {0.001}, {1.999}}, kOnce, DType::kBfloat16), "");
}

TEST(FindWrongElement, NanInfinityAndMissingElementsAreFound) {
  const std::vector<double> right = {NAN, INFINITY, 1};
  const std::vector<double> terms = {1, 1, 1};
  EXPECT_EQ(FindWrongElement({right, right, terms}, kOnce, DType::kFloat16), "");
  EXPECT_NE(FindWrongElement({{0, INFINITY, 1}, right, terms}, kOnce, DType::kFloat16), "");
  EXPECT_NE(FindWrongElement({{NAN, 1, 1}, right, terms}, kOnce, DType::kFloat16), "");
  EXPECT_NE(FindWrongElement({{NAN, INFINITY, NAN}, right, terms}, kOnce, DType::kFloat16), "");
  EXPECT_NE(FindWrongElement({{1}, right, terms}, kOnce, DType::kFloat16), "");
}

}  // namespace
}  // namespace ferry::kernels
