// Tests of sampling: draws, filters, reproducibility and argument checks.

#include "ferry/kernels/sampler/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "ferry/kernels/sampler/sampler_math.h"
#include "ferry/kernels/sampler/sampler_plan.h"
#include "ferry/kernels/testing/op_bed.h"

namespace ferry::kernels {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// One call, with a temperature, top_k and top_p of each row.
class SampleTensors {
 public:
  SampleTensors(DType dtype, std::int64_t rows, std::int64_t vocabulary,
                const TestLayout& layout = {})
      : logits_(dtype, {rows, vocabulary}, layout),
        out_(DType::kInt64, {rows}),
        temperatures_(DType::kFloat32, {rows}),
        top_k_(DType::kInt32, {rows}),
        top_p_(DType::kFloat32, {rows}),
        seeds_(DType::kInt64, {rows}),
        steps_(DType::kInt64, {rows}) {
    temperatures_.Fill([](std::int64_t) { return 1; });
    top_k_.Fill([](std::int64_t) { return 0; });
    top_p_.Fill([](std::int64_t) { return 1; });
    seeds_.Fill([](std::int64_t row) { return static_cast<double>(row) + 1000; });
    steps_.Fill([](std::int64_t) { return 0; });
  }

  SampleArgs Args(OpBed* bed) {
    SampleArgs args;
    args.logits = bed->View(logits_);
    args.out = bed->View(out_);
    args.temperatures = bed->View(temperatures_);
    args.top_k = bed->View(top_k_);
    args.top_p = bed->View(top_p_);
    args.seeds = bed->View(seeds_);
    args.steps = bed->View(steps_);
    return args;
  }
  std::vector<double> Run(OpBed bed, SampleForm form = SampleForm::kAuto) {
    out_.Poison();
    SampleArgs args = Args(&bed);
    args.form = form;
    const Status ran = bed.Run(kSampleKernel, SampleCpu, args);
    EXPECT_TRUE(ran) << ran.error().ToString();
    return Got();
  }
  std::vector<double> Got() const {
    for (const TestTensor* tensor : {&logits_, &out_}) tensor->ExpectGapsUntouched("sample");
    return out_.Values();
  }
  // All options in all combinations.
  void FillAnew(std::mt19937_64* random) {
    logits_.FillNormally(random, 0, 4);
    std::uniform_int_distribution<std::int64_t> any(0, 1 << 30);
    temperatures_.Fill([](std::int64_t row) {
      return row % 5 == 0 ? 0 : 0.3 + 0.1 * static_cast<double>(row % 11);
    });
    top_k_.Fill(
        [](std::int64_t row) { return row % 3 == 1 ? 1 + static_cast<double>(row * 7 % 60) : 0; });
    top_p_.Fill(
        [](std::int64_t row) { return row % 4 >= 2 ? 0.05 * static_cast<double>(row % 20) : 1; });
    seeds_.Fill([&](std::int64_t) { return static_cast<double>(any(*random)); });
    steps_.Fill([&](std::int64_t) { return static_cast<double>(any(*random)); });
  }

  TestTensor& logits() { return logits_; }
  TestTensor& out() { return out_; }
  TestTensor& temperatures() { return temperatures_; }
  TestTensor& top_k() { return top_k_; }
  TestTensor& top_p() { return top_p_; }
  TestTensor& seeds() { return seeds_; }
  TestTensor& steps() { return steps_; }

 private:
  TestTensor logits_;
  TestTensor out_;
  TestTensor temperatures_;
  TestTensor top_k_;
  TestTensor top_p_;
  TestTensor seeds_;
  TestTensor steps_;
};

// Probabilities by their definition; of the tokens that the filters leave.
std::vector<double> ProbabilitiesOf(std::vector<double> logits, double temperature,
                                    std::size_t top_k, double top_p) {
  std::vector<double> sorted = logits;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  if (top_k > 0 && top_k < sorted.size()) {
    const double last = sorted[top_k - 1];
    std::replace_if(
        logits.begin(), logits.end(), [last](double logit) { return logit < last; },
        kMinusInfinity);
  }
  const auto normalise = [](std::vector<double>* parts) {
    const double sum = std::accumulate(parts->begin(), parts->end(), 0.0);
    for (double& part : *parts) part /= sum;
  };
  std::vector<double> parts;
  for (const double logit : logits) parts.push_back(std::exp((logit - sorted[0]) / temperature));
  normalise(&parts);
  std::vector<double> descending = parts;
  std::sort(descending.begin(), descending.end(), std::greater<>());
  double sum = 0;
  double least = 0;
  for (const double part : descending) {
    least = part;
    sum += part;
    if (sum >= top_p) break;
  }
  for (double& part : parts) part = part < least ? 0 : part;
  normalise(&parts);
  return parts;
}

class SampleTest : public OpTest {
 protected:
  // In each form that the target has; all choose the same tokens.
  std::vector<double> Run(SampleTensors* tensors) {
    std::vector<double> chosen = tensors->Run(Bed());
    if (ComputeMajor() < 9) return chosen;
    EXPECT_EQ(tensors->Run(Bed(), SampleForm::kBlock), chosen);
    EXPECT_EQ(tensors->Run(Bed(), SampleForm::kCluster), chosen);
    return chosen;
  }

  // Draws from one distribution, with fresh seeds, and compares how often each token came.
  void ExpectFrequencies(const std::vector<double>& logits, double temperature, int top_k,
                         double top_p) {
    constexpr std::int64_t kDraws = 20'000;
    const auto vocabulary = static_cast<std::int64_t>(logits.size());
    SampleTensors tensors(DType::kFloat32, kDraws, vocabulary);
    tensors.logits().Fill(
        [&](std::int64_t i) { return logits[static_cast<std::size_t>(i % vocabulary)]; });
    tensors.temperatures().Fill([&](std::int64_t) { return temperature; });
    tensors.top_k().Fill([&](std::int64_t) { return top_k; });
    tensors.top_p().Fill([&](std::int64_t) { return top_p; });
    const auto first_seed = static_cast<double>(random()() >> 20);
    tensors.seeds().Fill([&](std::int64_t i) { return first_seed + static_cast<double>(i); });
    std::vector<double> counts(logits.size());
    for (const double token : Run(&tensors)) ++counts[static_cast<std::size_t>(token)];
    const std::vector<double> expected =
        ProbabilitiesOf(logits, temperature, static_cast<std::size_t>(top_k), top_p);
    for (std::size_t token = 0; token < counts.size(); ++token) {
      const double mean = kDraws * expected[token];
      const double deviation = std::sqrt(mean * (1 - expected[token]));
      // Once in a billion by chance.
      EXPECT_NEAR(counts[token], mean, 6.5 * deviation + (mean > 0 ? 1 : 0))
          << "token " << token << ", temperature " << temperature << ", top_k " << top_k
          << ", top_p " << top_p;
    }
  }
};

TEST_P(SampleTest, WithoutTemperatureTheFirstOfTheGreatestLogitsIsChosen) {
  for (const DType dtype : kFloatTypes) {
    for (const std::int64_t vocabulary : {1, 3, 8, 100, 1000, 5125}) {
      SampleTensors tensors(dtype, 5, vocabulary);
      tensors.logits().FillNormally(&random(), 0, 3);  // of 16 bits, of which many are equal
      tensors.temperatures().Fill([](std::int64_t) { return 0; });
      const std::vector<double> logits = tensors.logits().Values();
      const std::vector<double> got = Run(&tensors);
      for (std::size_t row = 0; row < 5; ++row) {
        const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(row) * vocabulary;
        EXPECT_EQ(got[row], std::max_element(begin, begin + vocabulary) - begin);
      }
    }
  }
}

TEST_P(SampleTest, AllThatMayBeLeftOutMayBeLeftOut) {
  SampleTensors tensors(DType::kBfloat16, 2, 50);
  tensors.logits().Fill([](std::int64_t i) { return i == 17 || i == 50 + 49 ? 3 : -1; });
  OpBed bed = Bed();
  SampleArgs args = tensors.Args(&bed);
  args.temperatures = args.top_k = args.top_p = args.seeds = args.steps = {};
  tensors.out().Poison();
  ASSERT_TRUE(bed.Run(kSampleKernel, SampleCpu, args));
  EXPECT_THAT(tensors.Got(), ElementsAre(17, 49));
}

// Rows of one token that can be chosen, of none, and of one that must be.
double OddLogit(std::int64_t row, std::int64_t token) {
  switch (row) {
    case 0: return token == 40 ? -1e30 : kMinusInfinity;
    case 1: return token == 7 ? -2.0 : std::nan("");
    case 2: return kMinusInfinity;
    default: return token == 9 ? std::numeric_limits<double>::infinity() : 5.0;
  }
}

TEST_P(SampleTest, WhatIsNoNumberAndWhatIsMinusInfinityIsNeverChosen) {
  for (const double temperature : {0.0, 1.0}) {
    SampleTensors tensors(DType::kFloat32, 4, 64);
    tensors.temperatures().Fill([&](std::int64_t) { return temperature; });
    tensors.logits().Fill([](std::int64_t i) { return OddLogit(i / 64, i % 64); });
    EXPECT_THAT(Run(&tensors), ElementsAre(40, 7, 0, 9)) << temperature;
  }
}

// l / temperature is minus infinity for it, too.
TEST_P(SampleTest, TheOneFiniteLogitIsChosenHoweverLowItIs) {
  for (const double temperature : {0.0, 1e-5, 0.7}) {
    for (const double top_p : {0.5, 1.0}) {
      SampleTensors tensors(DType::kFloat32, 3, 40);
      tensors.temperatures().Fill([&](std::int64_t) { return temperature; });
      tensors.top_p().Fill([&](std::int64_t) { return top_p; });
      tensors.logits().Fill([](std::int64_t i) { return i % 40 == 33 ? -3e38 : kMinusInfinity; });
      EXPECT_THAT(Run(&tensors), Each(33)) << temperature << " " << top_p;
    }
  }
}

TEST_P(SampleTest, UnderAnInfiniteTemperatureAllTokensAreAlikeAndUnderNoneTheGreatestIsChosen) {
  ExpectFrequencies({1, -20, 100, 3}, std::numeric_limits<double>::infinity(), 0, 1);
  ExpectFrequencies({1, -20, 100, 3}, 1e38, 2, 1);
  SampleTensors tensors(DType::kFloat32, 2, 40);
  tensors.temperatures().Fill([](std::int64_t) { return std::nan(""); });
  tensors.logits().Fill([](std::int64_t i) { return i % 40 == 12 ? 2 : 1; });
  EXPECT_THAT(Run(&tensors), Each(12));
}

TEST_P(SampleTest, TokensComeAsOftenAsTheirProbabilitiesSay) {
  const std::vector<double> logits = {1, 0.5, -1, 2, 0, 1.5, -3, 0.25, 2, -0.5};
  ExpectFrequencies(logits, 1, 0, 1);
  ExpectFrequencies(logits, 0.4, 0, 1);
  ExpectFrequencies(logits, 3, 0, 1);
  ExpectFrequencies({0, 0}, 1, 0, 1);
}

TEST_P(SampleTest, OfTheTokensThatTopKAndTopPLeaveEachComesAsOftenAsItShould) {
  const std::vector<double> logits = {1, 0.5, -1, 2.25, 0, 1.5, -3, 0.25, 2, -0.5};
  ExpectFrequencies(logits, 1, 1, 1);
  ExpectFrequencies(logits, 1, 4, 1);
  ExpectFrequencies(logits, 0.7, 100, 1);
  ExpectFrequencies(logits, 1, 0, 0.62);
  ExpectFrequencies(logits, 2, 0, 0);
  ExpectFrequencies(logits, 1.3, 5, 0.7);
  ExpectFrequencies({1, 2, 1, 2, 0}, 1, 1, 1);  // of equal ones all stay
}

// On the CPU this compares a thing with itself; elsewhere it is the promise.
TEST_P(SampleTest, EveryDeviceChoosesTheTokenThatTheCpuChooses) {
  struct Size {
    std::int64_t rows;
    std::int64_t vocabulary;
  };
  for (const DType dtype : kFloatTypes) {
    for (const Size size : {Size{7, 1}, {20, 5}, {60, 128}, {60, 1000}, {24, 4097}, {6, 151'936}}) {
      // With rows that begin anywhere, and contiguous, where many are read by words.
      const TestLayout odd{.gap = {1 + size.vocabulary % 3, 0}, .skip = size.vocabulary % 2};
      for (const TestLayout& layout : {odd, TestLayout{}}) {
        SampleTensors tensors(dtype, size.rows, size.vocabulary, layout);
        tensors.FillAnew(&random());
        OpBed cpu(nullptr);
        if (size.vocabulary == 151'936) {
          EXPECT_EQ(PlanSample(tensors.Args(&cpu))->wide, layout.skip == 0 && layout.gap[0] == 0);
        }
        const std::vector<double> expected = tensors.Run(std::move(cpu));
        EXPECT_EQ(Run(&tensors), expected) << NameOf(dtype) << " " << size.vocabulary;
      }
    }
  }
}

// Logits that are equal, and rows of which a part has no number.
double TiedLogit(std::int64_t row, std::int64_t token, std::int64_t vocabulary) {
  switch (row % 6) {
    case 0: return 1.5;
    case 1: return token == 11 || token >= vocabulary - 2 ? 7 : -7;
    case 2: return std::nan("");
    case 3: return token < vocabulary / 2 ? std::nan("") : static_cast<double>(token % 3);
    case 4: return token < vocabulary - 9 ? kMinusInfinity : 0;
    default: return static_cast<double>(token % 2) - 0.5;
  }
}

TEST_P(SampleTest, EveryDeviceTakesTheSameOfEqualLogits) {
  constexpr std::int64_t kRows = 24;
  for (const DType dtype : {DType::kFloat32, DType::kBfloat16}) {
    for (const std::int64_t vocabulary : {11, 513, 20'003, 40'000}) {
      SampleTensors tensors(dtype, kRows, vocabulary);
      tensors.FillAnew(&random());
      tensors.logits().Fill(
          [&](std::int64_t i) { return TiedLogit(i / vocabulary, i % vocabulary, vocabulary); });
      // All that the loop over kinds of rows has with each way of drawing.
      tensors.temperatures().Fill([](std::int64_t row) { return row < 6 ? 0 : 0.7; });
      tensors.top_k().Fill([](std::int64_t row) { return row >= 12 ? 2 : 0; });
      tensors.top_p().Fill([](std::int64_t row) { return row >= 18 || row / 6 == 1 ? 0.6 : 1; });
      const std::vector<double> expected = tensors.Run(OpBed(nullptr));
      EXPECT_EQ(Run(&tensors), expected) << NameOf(dtype) << " " << vocabulary;
    }
  }
}

TEST_P(SampleTest, ATokenDependsOnItsOwnSeedStepAndLogitsAlone) {
  constexpr std::int64_t kVocabulary = 333;
  SampleTensors tensors(DType::kBfloat16, 6, kVocabulary);
  tensors.logits().Fill([](std::int64_t i) { return static_cast<double>(i % kVocabulary % 7); });
  tensors.seeds().Fill([](std::int64_t) { return 12345; });
  const std::vector<double> same = Run(&tensors);
  EXPECT_THAT(same, Each(same[0]));
  tensors.steps().Fill([](std::int64_t row) { return static_cast<double>(row); });
  const std::vector<double> stepped = Run(&tensors);
  EXPECT_EQ(stepped[0], same[0]);
  EXPECT_GT(std::set<double>(stepped.begin(), stepped.end()).size(), 3U);
}

// Draws of equal logits by one seed and step for all rows, as numbers or as tensors of one element.
std::vector<double> DrawsOf(OpBed bed, std::int64_t seed, std::int64_t step, bool by_tensors) {
  constexpr std::int64_t kRows = 8;
  SampleTensors tensors(DType::kFloat32, kRows, 100'003);
  tensors.logits().Fill([](std::int64_t) { return 0; });
  TestTensor one_seed(DType::kInt64, {1});
  TestTensor one_step(DType::kInt64, {1});
  one_seed.Set(0, static_cast<double>(seed));
  one_step.Set(0, static_cast<double>(step));
  SampleArgs args = tensors.Args(&bed);
  args.seeds = args.steps = {};
  if (by_tensors) {
    args.seeds = bed.View(one_seed);
    args.steps = bed.View(one_step);
  } else {
    args.seed = static_cast<std::uint64_t>(seed);
    args.step = static_cast<std::uint64_t>(step);
  }
  tensors.out().Poison();
  const Status ran = bed.Run(kSampleKernel, SampleCpu, args);
  EXPECT_TRUE(ran) << ran.error().ToString();
  return tensors.Got();
}

// With 100,003 equal tokens two draws agree once in 100,003 cases.
TEST_P(SampleTest, RowsOfOneSeedHaveNothingInCommonWithRowsOfTheNextSeeds) {
  std::set<double> all;
  for (std::int64_t seed = 0; seed < 4; ++seed) {
    const std::vector<double> drawn = DrawsOf(Bed(), seed, 0, /*by_tensors=*/false);
    EXPECT_EQ(DrawsOf(Bed(), seed, 0, /*by_tensors=*/true), drawn);
    all.insert(drawn.begin(), drawn.end());
  }
  EXPECT_GE(all.size(), 31U);
}

TEST_P(SampleTest, OneStepForAllRowsIsTheStepOfEach) {
  const std::vector<double> drawn = DrawsOf(Bed(), 5, 9, /*by_tensors=*/false);
  EXPECT_EQ(DrawsOf(Bed(), 5, 9, /*by_tensors=*/true), drawn);
  EXPECT_NE(DrawsOf(Bed(), 5, 10, /*by_tensors=*/true), drawn);
}

// The draws of a graph follow the numbers that its tensors hold when it is replayed.
TEST_P(SampleTest, ACapturedCallDoesNotRepeatItsDraws) {
  SampleTensors tensors(DType::kFloat32, 3, 100'003);
  tensors.logits().Fill([](std::int64_t) { return 0; });
  TestTensor seed(DType::kInt64, {1});
  OpBed bed = Bed();
  SampleArgs args = tensors.Args(&bed);
  args.seeds = bed.View(seed);
  args.steps = {};
  const Status captured = bed.Capture(kSampleKernel, SampleCpu, args);
  ASSERT_TRUE(captured) << captured.error().ToString();
  std::set<double> all;
  for (int round = 0; round < 4; ++round) {
    seed.Set(0, round);
    ASSERT_TRUE(bed.Replay());
    for (const double token : tensors.Got()) all.insert(token);
  }
  EXPECT_GE(all.size(), 11U);
}

TEST_P(SampleTest, NoRowsAreLeftAlone) {
  SampleTensors tensors(DType::kFloat32, 0, 16);
  EXPECT_TRUE(Run(&tensors).empty());
}

TEST_P(SampleTest, ACapturedCallWorksOnWhatIsThereWhenItIsReplayed) {
  SampleTensors tensors(DType::kBfloat16, 12, 1000);
  OpBed bed = Bed();
  const Status captured = bed.Capture(kSampleKernel, SampleCpu, tensors.Args(&bed));
  ASSERT_TRUE(captured) << captured.error().ToString();
  for (int round = 0; round < 3; ++round) {
    tensors.FillAnew(&random());
    OpBed cpu(nullptr);
    const std::vector<double> expected = tensors.Run(std::move(cpu));
    tensors.out().Poison();
    const Status replayed = bed.Replay();
    ASSERT_TRUE(replayed) << replayed.error().ToString();
    EXPECT_EQ(tensors.Got(), expected);
  }
}

FERRY_INSTANTIATE_OP_TEST(SampleTest);

// ---- the arithmetic -----------------------------------------------------------------------------

// Known answers of the authors' own implementation (Random123).
TEST(SampleMath, PhiloxGivesItsKnownAnswers) {
  const auto words = [](const PhiloxWords& got) {
    return std::vector<std::uint32_t>(got.word, got.word + 4);
  };
  EXPECT_THAT(words(Philox({{0, 0, 0, 0}}, 0)),
              ElementsAre(0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U));
  constexpr std::uint32_t kOnes = 0xffffffffU;
  EXPECT_THAT(words(Philox({{kOnes, kOnes, kOnes, kOnes}}, ~std::uint64_t{0})),
              ElementsAre(0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU));
  EXPECT_THAT(words(Philox({{0x243f6a88U, 0x85a308d3U, 0x13198a2eU, 0x03707344U}},
                           std::uint64_t{0x299f31d0U} << 32 | 0xa4093822U)),
              ElementsAre(0xd16cfe09U, 0x94fdccebU, 0x5001e420U, 0x24126ea1U));
}

TEST(SampleMath, LogarithmsWeightsAndNoiseAreNearTheirFormulas) {
  std::mt19937_64 random(TestSeed());
  for (int i = 0; i < 200'000; ++i) {
    const auto word = static_cast<std::uint32_t>(random());
    const float number = std::ldexp(1 + static_cast<float>(word % 1024) / 1024, i % 60 - 40);
    EXPECT_NEAR(LogOf(number), std::log(double{number}), 3e-7 * (1 + std::fabs(i % 60 - 40)));
    const float uniform = UniformOf(i < 40 ? std::uint32_t{1} << i % 32 : word >> i % 32);
    ASSERT_GT(uniform, 0);
    ASSERT_LT(uniform, 1);
    EXPECT_NEAR(GumbelOf(uniform), -std::log(-std::log1p(-double{uniform})), 3e-4) << uniform;
    const float x = -24.0F * uniform;
    const double weight = std::exp(double{x}) * 0x1p32;
    EXPECT_NEAR(static_cast<double>(WeightOf(x)), weight, 1 + weight * 1e-5) << x;
  }
  EXPECT_EQ(WeightOf(0), std::uint64_t{1} << 32);
  EXPECT_EQ(WeightOf(-25), 0U);
  EXPECT_EQ(WeightOf(std::nanf("")), 0U);
  EXPECT_EQ(UniformOf(0), 0x1p-33F);
  EXPECT_LT(UniformOf(~0U), 1);
  EXPECT_LT(GumbelOf(UniformOf(0)), 23);  // as the kernel's bound has it
}

TEST(SampleMath, ScoresOfFiniteLogitsAreMoreThanNothing) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float greatest = std::numeric_limits<float>::max();
  EXPECT_EQ(ScoreOf(2, 0.5F, 3), 4);
  EXPECT_EQ(ScoreOf(-greatest, 1e5F, 1), -greatest);
  EXPECT_EQ(ScoreOf(-infinity, 1e5F, 1), -infinity);
  EXPECT_EQ(ScoreOf(infinity, 1e5F, 1), infinity);
  EXPECT_LT(ScoreOf(-infinity, 1e-30F, 22), ScoreOf(-greatest, 1e5F, -3));
}

TEST(SampleMath, KeysAreOrderedAsTheirNumbersAre) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> ascending = {-infinity, -1e30F, -2, -1,    -1e-40F, 0,
                                        1e-40F,    1,      2,  1e30F, infinity};
  for (std::size_t i = 0; i < ascending.size(); ++i) {
    EXPECT_EQ(NumberOf(KeyOf(ascending[i])), ascending[i]);
    for (std::size_t j = 0; j < ascending.size(); ++j) {
      EXPECT_EQ(KeyOf(ascending[i]) < KeyOf(ascending[j]), i < j);
    }
  }
  EXPECT_EQ(KeyOf(-0.0F), KeyOf(0.0F));
  EXPECT_EQ(KeyOf(-infinity), kKeyOfNothing);
  EXPECT_EQ(TokenOf(kNoCandidate), 0U);
  EXPECT_LT(Candidate(1, 8), Candidate(1, 7));
  EXPECT_LT(Candidate(1, 7), Candidate(2, 8));
  EXPECT_LT(Candidate(-infinity, 3), kNoCandidate);
}

// ---- arguments and choices, without memory that is touched ------------------------------------

class SamplePlanTest : public ::testing::Test {
 protected:
  static SampleArgs Args() {
    SampleArgs args;
    args.logits = TensorAt(1, {16, 151'936}, DType::kBfloat16);
    args.out = TensorAt(2, {16}, DType::kInt64);
    args.temperatures = TensorAt(3, {16}, DType::kFloat32);
    return args;
  }
  static std::string Refusal(const SampleArgs& args) {
    const auto plan = PlanSample(args);
    return plan ? "accepted" : plan.error().message();
  }
};

TEST_F(SamplePlanTest, WrongArgumentsAreNamedWithWhatTheyMustBe) {
  EXPECT_EQ(Refusal(Args()), "accepted");
  SampleArgs args = Args();
  args.logits.dtype = DType::kInt32;
  EXPECT_EQ(Refusal(args), "sample: logits is [16, 151936] int32; it must be fp32, fp16 or bf16");
  args = Args();
  args.logits = TensorAt(1, {16, 0}, DType::kBfloat16);
  EXPECT_THAT(Refusal(args), HasSubstr("it must be of 1 to 2^30 tokens along its last size"));
  args = Args();
  args.logits.stride[1] = 2;
  EXPECT_THAT(Refusal(args), HasSubstr("of stride 1 along its last size"));
  args = Args();
  args.out = TensorAt(2, {16}, DType::kInt32);
  EXPECT_EQ(Refusal(args), "sample: out is [16] int32; it must be int64");
  args = Args();
  args.out = TensorAt(2, {15}, DType::kInt64);
  EXPECT_EQ(Refusal(args),
            "sample: out is [15] int64; it must be [16], one for each row of logits");
  args = Args();
  args.temperatures.dtype = DType::kBfloat16;
  EXPECT_EQ(Refusal(args), "sample: temperatures is [16] bf16; it must be fp32");
  args = Args();
  args.top_k = TensorAt(4, {16}, DType::kInt64);
  EXPECT_EQ(Refusal(args), "sample: top_k is [16] int64; it must be int32");
  args = Args();
  args.top_p = TensorAt(4, {1}, DType::kFloat32);
  EXPECT_THAT(Refusal(args), HasSubstr("top_p is [1] fp32; it must be [16]"));
  args = Args();
  args.seeds = args.out;
  EXPECT_EQ(Refusal(args), "sample: out lies over seeds; it must be other memory");
  args = Args();
  args.steps = TensorAt(4, {16}, DType::kFloat32);
  EXPECT_EQ(Refusal(args), "sample: steps is [16] fp32; it must be int64");
  args = Args();
  args.seeds = TensorAt(4, {2}, DType::kInt64);
  EXPECT_EQ(Refusal(args),
            "sample: seeds is [2] int64; it must be [16], one for each row of logits, or one for "
            "all");
  args.seeds = TensorAt(4, {1}, DType::kInt64);
  EXPECT_EQ(Refusal(args), "accepted");
}

TEST_F(SamplePlanTest, FewRowsAreSharedByAsManyBlocksAsThereAreMultiprocessorsFor) {
  const SampleDevice device{
      .multiprocessors = 132, .shared_bytes = 227 * 1024, .has_clusters = true};
  SamplePlan plan = *PlanSample(Args());
  const auto blocks = [&](std::uint32_t rows) {
    plan.rows = rows;
    return *BlocksOfRow(plan, device);
  };
  EXPECT_EQ(blocks(1), 8U);
  EXPECT_EQ(blocks(16), 8U);
  EXPECT_EQ(blocks(17), 4U);
  EXPECT_EQ(blocks(33), 4U);
  EXPECT_EQ(blocks(34), 2U);
  EXPECT_EQ(blocks(66), 2U);
  EXPECT_EQ(blocks(67), 1U);
  EXPECT_EQ(PartOfRow(plan, 8), 18'992U);
  plan.dtype = DType::kFloat32;
  EXPECT_EQ(blocks(33), 4U);
  EXPECT_EQ(blocks(34), 1U);  // half a row does not fit
  plan.vocabulary = 1000;
  EXPECT_EQ(blocks(1), 1U);
  EXPECT_EQ(PartOfRow(plan, 8), 128U);  // the last has fewer
}

TEST_F(SamplePlanTest, AFormThatIsAskedForIsTakenOrRefused) {
  SampleDevice device{.multiprocessors = 132, .shared_bytes = 227 * 1024, .has_clusters = true};
  SampleArgs args = Args();
  args.form = SampleForm::kBlock;
  EXPECT_EQ(*BlocksOfRow(*PlanSample(args), device), 1U);
  args.form = SampleForm::kCluster;
  SamplePlan plan = *PlanSample(args);
  plan.rows = 1000;
  EXPECT_EQ(*BlocksOfRow(plan, device), 2U);
  plan.vocabulary = 1 << 20;
  EXPECT_THAT(BlocksOfRow(plan, device).error().message(),
              HasSubstr("a row of 1048576 bf16 does not fit the shared memory of 8 thread blocks"));
  device.has_clusters = false;
  EXPECT_EQ(BlocksOfRow(plan, device).error().code(), Code::kUnsupported);
  plan.form = SampleForm::kAuto;
  EXPECT_EQ(*BlocksOfRow(plan, device), 1U);
}

TEST_F(SamplePlanTest, WordsOf16BytesAreForRowsThatHaveThem) {
  EXPECT_TRUE(PlanSample(Args())->wide);
  SampleArgs args = Args();
  args.logits.stride[0] += 4;
  EXPECT_FALSE(PlanSample(args)->wide);
  args = Args();
  args.logits = TensorAt(1, {16, 151'937}, DType::kBfloat16);
  EXPECT_FALSE(PlanSample(args)->wide);
}

}  // namespace
}  // namespace ferry::kernels
