// Tests of prefill attention on CPU, simulated device and GPU.

#include "ferry/kernels/attention_prefill/attention_prefill.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "ferry/kernels/testing/op_bed.h"
#include "ferry/kernels/testing/prefill_problem.h"
#include "ferry/kernels/testing/test_tensor.h"

namespace ferry::kernels {
namespace {

using ::testing::HasSubstr;

class AttentionPrefillTest : public PrefillTest {};
FERRY_INSTANTIATE_OP_TEST(AttentionPrefillTest);
FERRY_INSTANTIATE_WGMMA_SM90_TEST(AttentionPrefillTest);

// PrefillLengths beside a tile of keys, of queries, and of a warp's; prefixes; queries before the
// first key; sequences without queries, without keys, without both.
std::vector<PrefillTestSizes> PrefillTable() {
  return {{2, 1, 64, {{1, 1}, {17, 17}, {130, 130}}},
          {3, 3, 128, {{129, 129}, {5, 70}, {1, 64}}},
          {4, 2, 128, {{40, 7}, {0, 5}, {3, 0}, {0, 0}, {33, 65}}},
          {4, 1, 256, {{66, 66}, {10, 33}}},
          {2, 2, 128, {{20, 90}}, true, 16},
          {6, 2, 64, {{31, 31}, {7, 150}, {64, 64}}, true, 48},
          {2, 1, 256, {{9, 40}}, true, 32}};
}

TEST_P(AttentionPrefillTest, EqualsTheFormulaForLengthsAndGroupsOfAllKinds) {
  for (const DType dtype : {DType::kBfloat16, DType::kFloat16}) {
    for (PrefillTestSizes sizes : PrefillTable()) {
      for (const bool causal : {true, false}) {
        if (!OnGpu() && !causal && dtype == DType::kFloat16) continue;  // for the sanitizers' sake
        sizes.causal = causal;
        PrefillProblem problem(sizes, dtype, &random());
        ExpectRight(&problem, "prefill");
      }
    }
  }
}

TEST_P(AttentionPrefillTest, TheFormThatIsChosenIsRight) {
  for (const std::int64_t page : {0, 32}) {
    PrefillProblem problem({4, 2, 128, {{70, 300}, {1, 9}}, true, page}, DType::kBfloat16,
                           &random());
    OpBed bed = Bed();
    AttentionPrefillArgs args = problem.Args(&bed, 2);
    args.form = PrefillForm::kAuto;
    const Status ran = bed.Run(kAttentionPrefillKernel, AttentionPrefillCpu, args);
    ASSERT_TRUE(ran) << ran.error().ToString();
    problem.ExpectRight("chosen");
  }
}

TEST_P(AttentionPrefillTest, IsTheSameInAnyNumberOfStages) {
  for (const std::int64_t page : {0, 64}) {
    PrefillProblem problem({2, 1, 128, {{70, 300}, {1, 1}}, true, page}, DType::kBfloat16,
                           &random());
    for (const int stages : {1, 2, 3}) {
      if (!OnGpu() && stages != 2) continue;  // the CPU's form has none
      problem.out.Poison();
      ExpectRight(&problem, fmt::format("{} stages", stages), stages);
    }
  }
}

TEST_P(AttentionPrefillTest, ReadsViewsWithGapsAndLeavesTheGapsAlone) {
  const TestLayout rows{.gap = {40, 8, 0}, .skip = 24};
  PrefillProblem plain({4, 2, 64, {{40, 40}, {3, 60}}}, DType::kFloat16, &random(), rows,
                       {.gap = {16, 8, 0}, .skip = 8});
  ExpectRight(&plain, "with gaps");
  PrefillProblem paged({4, 2, 128, {{40, 40}, {3, 60}}, true, 16}, DType::kBfloat16, &random(),
                       rows, {.gap = {128, 64, 8, 0}, .skip = 8});
  ExpectRight(&paged, "with gaps, in pages");
}

TEST_P(AttentionPrefillTest, QueriesThatSeeNoKeyGiveZeros) {
  PrefillProblem problem({2, 1, 128, {{200, 3}, {5, 0}}}, DType::kBfloat16, &random());
  ExpectRight(&problem, "before the first key");
  EXPECT_EQ(problem.out.Get(0), 0);
  EXPECT_EQ(problem.out.Get((197 * 2) * 128 - 1), 0);
  EXPECT_NE(problem.out.Get(197 * 2 * 128), 0);
  EXPECT_EQ(problem.out.Get(200 * 2 * 128), 0);
}

TEST_P(AttentionPrefillTest, AGraphGoesByTheLengthsOfItsReplay) {
  PrefillProblem problem({2, 1, 128, {{150, 150}, {20, 100}}, true, 32}, DType::kBfloat16,
                         &random());
  OpBed bed = Bed();
  const Status captured =
      bed.Capture(kAttentionPrefillKernel, AttentionPrefillCpu, ArgsOf(&problem, &bed));
  ASSERT_TRUE(captured) << captured.error().ToString();
  for (const std::vector<PrefillLengths>& lengths :
       {std::vector<PrefillLengths>{{150, 150}, {20, 100}},
        {{1, 1}, {140, 145}},
        {{0, 9}, {64, 128}}}) {
    problem.Deal(&random(), &lengths);
    const Status ran = bed.Replay();
    ASSERT_TRUE(ran) << ran.error().ToString();
    problem.ExpectRight("replayed");
    problem.ExpectInputsUntouched("replayed");
  }
}

// Scores that exp() has no number for; the largest is the last that each query sees.
TEST_P(AttentionPrefillTest, LargeScoresDoNotOverflow) {
  constexpr std::int64_t kTokens = 100;
  PrefillProblem problem({1, 1, 64, {{kTokens, kTokens}}}, DType::kBfloat16, &random());
  const auto token_of = [](std::int64_t element) {
    return std::floor(static_cast<double>(element) / 64);
  };
  problem.q.Fill([&](std::int64_t) { return 30.0; });
  problem.k.Fill(token_of);
  problem.v.Fill(token_of);
  OpBed bed = Bed();
  ASSERT_TRUE(bed.Run(kAttentionPrefillKernel, AttentionPrefillCpu, ArgsOf(&problem, &bed)));
  for (std::int64_t i = 0; i < kTokens * 64; ++i) ASSERT_EQ(problem.out.Get(i), token_of(i));
}

TEST_P(AttentionPrefillTest, NoSequencesAndNoQueriesAreFine) {
  PrefillProblem problem({2, 1, 64, {{0, 5}}}, DType::kBfloat16, &random());
  ExpectRight(&problem, "no queries");
  for (const std::int64_t page : {0, 16}) {
    PrefillProblem none({2, 1, 64, {}, true, page}, DType::kBfloat16, &random());
    ExpectRight(&none, "no sequences");
  }
}

// Spoils the first key, which all queries see.
TEST_P(AttentionPrefillTest, AValueThatIsNanIsSeenInItsColumnOnly) {
  PrefillProblem problem({2, 2, 128, {{70, 70}, {5, 20}}}, DType::kBfloat16, &random());
  problem.v.Set(problem.TokenElement(0, 0, 1) + 5, NAN);
  ExpectRight(&problem, "a value that is NaN");
  EXPECT_TRUE(std::isnan(problem.out.Get(128 + 5)));
  EXPECT_FALSE(std::isnan(problem.out.Get(5)));
}

TEST_P(AttentionPrefillTest, OnAGpuEndsBeyondTheTensorsAreCut) {
  if (!OnGpu()) GTEST_SKIP() << "the CPU's form refuses them";
  PrefillProblem problem({2, 1, 64, {{20, 40}, {33, 50}}, false}, DType::kBfloat16, &random());
  // Rows behind the last sequence, which are its own now.
  problem.k.FillNormally(&random());
  problem.v.FillNormally(&random());
  problem.SetLengths({{20, 40}, {33, 50 + PrefillProblem::kSpareRows}});
  problem.k_ends.Set(2, 2147483647);
  problem.q_ends.Set(2, 5000);
  OpBed bed = Bed();
  const Status ran = bed.Run(kAttentionPrefillKernel, AttentionPrefillCpu, ArgsOf(&problem, &bed));
  ASSERT_TRUE(ran) << ran.error().ToString();
  problem.ExpectInputsUntouched("ends out of bounds");
  problem.q_ends.Set(2, 20 + 33);
  // Queries behind the last are NaN, as is what they give.
  problem.ExpectRight("ends out of bounds");
}

TEST_P(AttentionPrefillTest, OnAGpuLengthsBeyondTheTableAreCutAndNegativeOnesAreNone) {
  if (!OnGpu()) GTEST_SKIP() << "the CPU's form refuses them";
  PrefillProblem problem({.heads = 2,
                          .kv_heads = 1,
                          .head_size = 128,
                          .sequences = {{20, 96}, {33, 50}, {7, 20}},
                          .page = 16,
                          .spare_pages = 0},
                         DType::kBfloat16, &random());
  problem.SetLengths({{20, 96}, {33, 0}, {7, 20}});
  problem.k_ends.Set(1, 5000);
  problem.k_ends.Set(2, 4000);
  problem.k_ends.Set(3, 4020);
  ExpectRight(&problem, "lengths out of bounds");
}

TEST_P(AttentionPrefillTest, OnAGpuAPageThatIsNoneCountsAsZeros) {
  if (!OnGpu()) GTEST_SKIP() << "the CPU's form refuses it";
  PrefillProblem problem({2, 1, 128, {{30, 100}}, true, 16}, DType::kBfloat16, &random());
  for (const double wrong : {-1.0, 1e6}) {
    problem.Deal(&random());
    const auto page = static_cast<std::int64_t>(problem.tables.Get(1));
    problem.tables.Set(1, wrong);
    OpBed bed = Bed();
    const Status ran =
        bed.Run(kAttentionPrefillKernel, AttentionPrefillCpu, ArgsOf(&problem, &bed));
    ASSERT_TRUE(ran) << ran.error().ToString();
    problem.ExpectInputsUntouched("a page that is none");
    problem.tables.Set(1, static_cast<double>(page));
    for (std::int64_t i = 0; i < 16 * 128; ++i) {
      problem.k.Set(page * 16 * 128 + i, 0);
      problem.v.Set(page * 16 * 128 + i, 0);
    }
    problem.ExpectRight("a page that is none");
  }
}

// Cases that would take the CPU too long: many tiles for every warp, many heads, long rows of
// pages.
TEST_P(AttentionPrefillTest, OnAGpuLongSequencesAreRight) {
  if (!OnGpu()) GTEST_SKIP() << "as the CPU's form is for short ones";
  for (const std::int64_t head_size : {64, 128, 256}) {
    PrefillProblem problem({2, 1, head_size, {{700, 1000}, {1, 777}}, true, 256}, DType::kBfloat16,
                           &random());
    ExpectRight(&problem, "long");
  }
}

// Many tiles of keys, whose last one has all sorts of lengths, for many tiles of queries.
TEST_P(AttentionPrefillTest, OnAGpuLongSequencesThatAreNotInPagesAreRight) {
  if (!OnGpu()) GTEST_SKIP() << "as the CPU's form is for short ones";
  for (const std::int64_t head_size : {64, 128, 256}) {
    for (const bool causal : {true, false}) {
      PrefillProblem problem({2, 1, head_size, {{400, 640}, {1, 777}, {128, 128}}, causal},
                             DType::kBfloat16, &random());
      ExpectRight(&problem, "long, not in pages");
    }
  }
}

// Nothing is added up in an order that depends on which warp comes first, so what differs is a
// race.
TEST_P(AttentionPrefillTest, OnAGpuEachRunGivesTheSameBits) {
  if (!OnGpu()) GTEST_SKIP() << "the CPU's form has one thread";
  for (const auto& [head_size, page] : {std::pair(64, 0), {128, 0}, {256, 0}, {128, 16}}) {
    PrefillProblem problem({16, 4, head_size, {{900, 900}, {300, 1200}, {513, 513}}, true, page},
                           DType::kFloat16, &random());
    std::vector<std::byte> first;
    for (int run = 0; run < 10; ++run) {
      problem.out.Poison();
      OpBed bed = Bed();
      const Status ran =
          bed.Run(kAttentionPrefillKernel, AttentionPrefillCpu, ArgsOf(&problem, &bed));
      ASSERT_TRUE(ran) << ran.error().ToString();
      const std::vector<std::byte> bytes(problem.out.memory().begin(), problem.out.memory().end());
      if (first.empty()) first = bytes;
      ASSERT_TRUE(bytes == first) << "heads of " << head_size << ", pages of " << page << ", run "
                                  << run;
    }
  }
}

TEST(AttentionPrefillCpu, HasFloatsAndHeadsOfAnySize) {
  std::mt19937_64 random(TestSeed());
  for (const DType dtype : kFloatTypes) {
    PrefillProblem problem({6, 3, 20, {{9, 9}, {3, 12}, {4, 2}}}, dtype, &random,
                           {.gap = {3, 1, 0}, .skip = 1}, {.gap = {7, 5, 0}, .skip = 3});
    OpBed bed(nullptr);
    ASSERT_TRUE(AttentionPrefillCpu(problem.Args(&bed)));
    problem.ExpectRight("on the CPU");
  }
}

TEST(AttentionPrefillCpu, NamesLengthsAndPagesThatAreOutOfBounds) {
  std::mt19937_64 random(TestSeed());
  PrefillProblem problem({2, 1, 8, {{20, 20}, {5, 40}}, true, 16}, DType::kFloat32, &random);
  OpBed bed(nullptr);
  const auto message = [&] {
    const Status status = AttentionPrefillCpu(problem.Args(&bed));
    return status ? std::string("none") : status.error().message();
  };
  problem.q_ends.Set(0, 1);
  EXPECT_THAT(message(), HasSubstr("cu_seqlens_q[0] is 1 after 0; it must begin with 0"));
  problem.q_ends.Set(0, 0);
  problem.q_ends.Set(2, 29);
  EXPECT_THAT(message(), HasSubstr("cu_seqlens_q[2] is 29 after 20"));
  problem.q_ends.Set(1, 21);
  problem.q_ends.Set(2, 25);
  EXPECT_THAT(message(), HasSubstr("sequence 0 has 21 queries; it must have at most max_seqlen_q"));
  problem.q_ends.Set(1, 20);
  problem.k_ends.Set(2, 19);
  EXPECT_THAT(message(), HasSubstr("cu_seqlens_k[2] is 19 after 20"));
  problem.k_ends.Set(2, 20 + 81);
  EXPECT_THAT(message(), HasSubstr("sequence 1 has 81 tokens; it must have 0 to 80"));
  problem.k_ends.Set(2, 60);
  problem.tables.Set(5 + 2, -1);
  EXPECT_THAT(message(), HasSubstr("block_tables[1, 2] is -1; with 40 tokens"));
  problem.tables.Set(5 + 2, 0);
  EXPECT_EQ(message(), "none");
}

}  // namespace
}  // namespace ferry::kernels
