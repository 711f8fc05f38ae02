// Tests of prefill attention on CPU, simulated device and GPU.

#include "ferry/kernels/attention_prefill/attention_prefill.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ferry/kernels/testing/attention_formula.h"
#include "ferry/kernels/testing/compare.h"
#include "ferry/kernels/testing/op_bed.h"
#include "ferry/kernels/testing/test_tensor.h"

namespace ferry::kernels {
namespace {

using ::testing::HasSubstr;

struct Lengths {
  std::int64_t queries;
  std::int64_t keys;
};

struct PrefillSizes {
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t head_size;
  std::vector<Lengths> sequences;
  bool causal = true;
  std::int64_t page = 0;         // tokens; 0: keys are not paged
  std::int64_t spare_pages = 2;  // of the tables' rows, beyond the longest
};

std::string NameOfProblem(const PrefillSizes& sizes) {
  std::string name = fmt::format("{}/{} heads of {}, {}, pages of {}:", sizes.heads, sizes.kv_heads,
                                 sizes.head_size, sizes.causal ? "causal" : "full", sizes.page);
  for (const Lengths& one : sizes.sequences) name += fmt::format(" {}x{}", one.queries, one.keys);
  return name;
}

// Sequences one behind the other, or whose keys lie in pages anywhere. All that belongs to nobody
// is NaN: pages without an owner, tokens behind a sequence's end in its last page, rows of q, k and
// v behind the last sequence.
class PrefillProblem {
 public:
  static constexpr std::int64_t kSpareRows = 3;

  PrefillProblem(const PrefillSizes& sizes, DType dtype, std::mt19937_64* random,
                 const TestLayout& rows = {}, const TestLayout& key_rows = {})
      : sizes_(sizes),
        q(dtype, {Sum(&Lengths::queries) + kSpareRows, sizes.heads, sizes.head_size}, rows),
        k(dtype, KeyShape(), key_rows),
        v(dtype, KeyShape(), key_rows),
        q_ends(DType::kInt32, {Batch() + 1}),
        k_ends(DType::kInt32, {Batch() + 1}),
        tables(DType::kInt32, {Batch(), MaxPages()}),
        out(dtype, {Sum(&Lengths::queries) + kSpareRows, sizes.heads, sizes.head_size}, rows),
        workspace(DType::kFloat32, {0}) {
    Deal(random);
  }

  // Fills everything anew, with other lengths if there are any.
  void Deal(std::mt19937_64* random, const std::vector<Lengths>* lengths = nullptr) {
    if (lengths != nullptr) sizes_.sequences = *lengths;
    for (TestTensor* tensor : {&q, &k, &v, &out}) tensor->Poison();
    std::vector<std::int64_t> pages(static_cast<std::size_t>(pages_));
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), *random);
    // Entries that no sequence needs: none, out of range, or a page of NaN.
    const double of_nobody = pages.empty() ? -1.0 : static_cast<double>(pages.front());
    tables.Fill([of_nobody](std::int64_t i) {
      return i % 3 == 0 ? -1.0 : i % 3 == 1 ? 2147483647.0 : of_nobody;
    });
    q_ends.Set(0, 0);
    k_ends.Set(0, 0);
    for (std::int64_t b = 0; b < Batch(); ++b) {
      q_ends.Set(b + 1, q_ends.Get(b) + static_cast<double>(Of(b).queries));
      k_ends.Set(b + 1, k_ends.Get(b) + static_cast<double>(Of(b).keys));
      for (std::int64_t i = 0; sizes_.page > 0 && i * sizes_.page < Of(b).keys; ++i) {
        tables.Set(b * MaxPages() + i, static_cast<double>(pages.back()));
        pages.pop_back();
      }
      FillSequence(b, random);
    }
    KeepInputs();
  }
  // Computes the expected result from the current tensors.
  void SetLengths(const std::vector<Lengths>& lengths) { sizes_.sequences = lengths; }

  // With a workspace that is just large enough for the parts: a bed is for one call.
  AttentionPrefillArgs Args(OpBed* bed, int stages = 2, int splits = 1) {
    const PrefillWork work{.queries = q.view().shape[0],
                           .heads = sizes_.heads,
                           .head_size = sizes_.head_size};
    workspace = TestTensor(DType::kFloat32, {PrefillWorkspace(work, splits)});
    KeepInputs();
    return {.q = bed->View(q),
            .k = bed->View(k),
            .v = bed->View(v),
            .cu_seqlens_q = bed->View(q_ends),
            .cu_seqlens_k = bed->View(k_ends),
            .block_tables = sizes_.page > 0 ? bed->View(tables) : Tensor{},
            .out = bed->View(out),
            .max_seqlen_q = most_queries_,
            .scale = Scale(),
            .causal = sizes_.causal,
            .stages = stages,
            .splits = splits,
            .workspace = bed->View(workspace)};
  }

  // For all rows that belong to somebody.
  std::vector<double> Formula(const Rounding& rounded) const {
    const std::vector<double> queries = q.Values();
    const std::vector<double> keys = k.Values();
    const std::vector<double> values = v.Values();
    const auto size = static_cast<std::size_t>(sizes_.head_size);
    std::vector<double> rows;
    for (std::int64_t b = 0; b < Batch(); ++b) {
      for (std::int64_t i = 0; i < Of(b).queries * sizes_.heads; ++i) {
        const auto query =
            static_cast<std::size_t>(QueryElement(b)) + static_cast<std::size_t>(i) * size;
        const SeenTokens seen{.keys = keys, .values = values, .tokens = SeenBy(b, i)};
        AddAttention(std::span(queries).subspan(query, size), seen, static_cast<double>(Scale()),
                     rounded, &rows);
      }
    }
    return rows;
  }

  void ExpectRight(const std::string& name) const {
    const DType dtype = q.view().dtype;
    std::vector<double> got = out.Values();
    const auto owned = static_cast<std::size_t>(QueryElement(Batch()));
    for (std::size_t i = owned; i < got.size(); ++i) {
      ASSERT_TRUE(std::isnan(got[i])) << name << ": a row that belongs to nobody was written";
    }
    got.resize(owned);
    ExpectRowsAsGoodAsNaive(
        {.got = got, .naive = Formula(RoundingTo(dtype)), .right = Formula(Exactly)},
        sizes_.head_size, dtype, name + ": " + NameOfProblem(sizes_));
    out.ExpectGapsUntouched(name);
    workspace.ExpectGapsUntouched(name);
  }
  void ExpectInputsUntouched(const std::string& name) const { inputs_->ExpectSame(name); }

  // The first element of a token's key, and of its value.
  std::int64_t TokenElement(std::int64_t b, std::int64_t t, std::int64_t g) const {
    std::int64_t token = static_cast<std::int64_t>(k_ends.Get(b)) + t;
    if (sizes_.page > 0) {
      const double page = tables.Get(b * MaxPages() + t / sizes_.page);
      token = static_cast<std::int64_t>(page) * sizes_.page + t % sizes_.page;
    }
    return (token * sizes_.kv_heads + g) * sizes_.head_size;
  }

 private:
  void KeepInputs() {
    inputs_.emplace(std::vector<TestTensor*>{&q, &k, &v, &q_ends, &k_ends, &tables});
  }
  std::int64_t Batch() const { return static_cast<std::int64_t>(sizes_.sequences.size()); }
  const Lengths& Of(std::int64_t b) const { return sizes_.sequences[static_cast<std::size_t>(b)]; }
  std::int64_t Sum(std::int64_t Lengths::*member) const {
    std::int64_t sum = 0;
    for (const Lengths& one : sizes_.sequences) sum += one.*member;
    return sum;
  }
  std::int64_t Most(std::int64_t Lengths::*member) const {
    std::int64_t most = 0;
    for (const Lengths& one : sizes_.sequences) most = std::max(most, one.*member);
    return most;
  }
  std::int64_t MaxPages() const { return max_pages_; }
  std::vector<std::int64_t> KeyShape() const {
    if (sizes_.page == 0) {
      return {Sum(&Lengths::keys) + kSpareRows, sizes_.kv_heads, sizes_.head_size};
    }
    return {pages_, sizes_.page, sizes_.kv_heads, sizes_.head_size};
  }
  float Scale() const { return 1.0F / std::sqrt(static_cast<float>(sizes_.head_size)); }

  std::int64_t QueryElement(std::int64_t b) const {
    return static_cast<std::int64_t>(q_ends.Get(b)) * sizes_.heads * sizes_.head_size;
  }
  // The keys of row i of a sequence's queries, of which each has one for each head.
  std::vector<std::size_t> SeenBy(std::int64_t b, std::int64_t i) const {
    const std::int64_t g = i % sizes_.heads * sizes_.kv_heads / sizes_.heads;
    const std::int64_t later_queries = Of(b).queries - 1 - i / sizes_.heads;
    std::vector<std::size_t> tokens;
    for (std::int64_t t = 0; t < Of(b).keys; ++t) {
      const std::int64_t later_keys = Of(b).keys - 1 - t;
      if (sizes_.causal && later_keys < later_queries) continue;
      tokens.push_back(static_cast<std::size_t>(TokenElement(b, t, g)));
    }
    return tokens;
  }
  void FillSequence(std::int64_t b, std::mt19937_64* random) {
    std::normal_distribution<double> normal;
    for (std::int64_t i = QueryElement(b); i < QueryElement(b + 1); ++i) q.Set(i, normal(*random));
    for (std::int64_t t = 0; t < Of(b).keys; ++t) {
      const std::int64_t first = TokenElement(b, t, 0);
      for (std::int64_t i = 0; i < sizes_.kv_heads * sizes_.head_size; ++i) {
        k.Set(first + i, normal(*random));
        v.Set(first + i, normal(*random));
      }
    }
  }

  PrefillSizes sizes_;
  const std::int64_t most_queries_ = Most(&Lengths::queries);
  const std::int64_t max_pages_ =
      sizes_.page == 0
          ? 1
          : (Most(&Lengths::keys) + sizes_.page - 1) / sizes_.page + sizes_.spare_pages;
  const std::int64_t pages_ =
      sizes_.page == 0 ? 0 : Sum(&Lengths::keys) / sizes_.page + Batch() + 2;
  std::optional<Snapshot> inputs_;

 public:
  TestTensor q;
  TestTensor k;
  TestTensor v;
  TestTensor q_ends;
  TestTensor k_ends;
  TestTensor tables;
  TestTensor out;
  TestTensor workspace;
};

constexpr const char* kWgmmaSm90Name = "WgmmaSm90";

class AttentionPrefillTest : public OpTest {
 protected:
  void SetUp() override {
    OpTest::SetUp();
    if (!IsSkipped() && ByWgmmaSm90() && ComputeMajor() != 9) {
      GTEST_SKIP() << "only GPUs of compute capability 9.0 have this form";
    }
  }
  // Whether the test is of the form kWgmmaSm90, where that does what is asked.
  bool ByWgmmaSm90() const { return std::string_view(GetParam().name) == kWgmmaSm90Name; }

  AttentionPrefillArgs ArgsOf(PrefillProblem* problem, OpBed* bed, int stages = 2,
                              int splits = 1) {
    AttentionPrefillArgs args = problem->Args(bed, stages, splits);
    const bool can = ByWgmmaSm90() && stages == 2;
    args.form = can ? PrefillForm::kWgmmaSm90 : PrefillForm::kCpAsync;
    return args;
  }
  void ExpectRight(PrefillProblem* problem, const std::string& name, int stages = 2,
                   int splits = 1) {
    OpBed bed = Bed();
    const Status ran = bed.Run(kAttentionPrefillKernel, AttentionPrefillCpu,
                               ArgsOf(problem, &bed, stages, splits));
    ASSERT_TRUE(ran) << name << ": " << ran.error().ToString();
    problem->ExpectInputsUntouched(name);
    problem->ExpectRight(name);
  }
};
FERRY_INSTANTIATE_OP_TEST(AttentionPrefillTest);
INSTANTIATE_TEST_SUITE_P(GpuWgmmaSm90, AttentionPrefillTest,
                         ::testing::Values(cuda::DeviceCase{kWgmmaSm90Name, cuda::kRealCase.make}),
                         cuda::DeviceCaseName);

// Lengths beside a tile of keys, of queries, and of a warp's; prefixes; queries before the first
// key; sequences without queries, without keys, without both.
std::vector<PrefillSizes> PrefillTable() {
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
    for (PrefillSizes sizes : PrefillTable()) {
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
  for (const std::vector<Lengths>& lengths :
       {std::vector<Lengths>{{150, 150}, {20, 100}}, {{1, 1}, {140, 145}}, {{0, 9}, {64, 128}}}) {
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

// Boxes of 16 to 128 keys, which are whole pages, parts of pages, and, of pages of 48 and 80, what
// divides both a page and a tile.
TEST_P(AttentionPrefillTest, OnAGpuLongSequencesInPagesOfAllSizesAreRight) {
  if (!OnGpu()) GTEST_SKIP() << "as the CPU's form is for short ones";
  for (const std::int64_t page : {16, 32, 48, 64, 80, 128, 192, 256}) {
    for (const std::int64_t head_size : {64, 128, 256}) {
      PrefillProblem problem({4, 2, head_size, {{300, 640}, {1, 777}, {128, 128}, {70, 17}},
                              page % 32 == 0, page},
                             DType::kBfloat16, &random());
      ExpectRight(&problem, "long, in pages");
    }
  }
}

// Groups that fill a tile, that do not divide it, and of one head; few queries behind many keys,
// more queries than keys, and neither. The forms without parts ignore their number.
TEST_P(AttentionPrefillTest, PartsOfTheKeysAreMerged) {
  for (const int splits : {1, 2, 5}) {
    for (const std::int64_t page : {0, 16}) {
      for (const std::int64_t heads : {4, 5, 1}) {
        PrefillProblem problem({heads, 1, 64, {{16, 150}, {1, 77}, {0, 5}, {7, 5}, {5, 0}},
                                heads != 5, page},
                               DType::kBfloat16, &random());
        ExpectRight(&problem, fmt::format("{} parts", splits), 2, splits);
      }
    }
  }
}

TEST_P(AttentionPrefillTest, OnAGpuPartsOfManyKeysAreMerged) {
  if (!OnGpu()) GTEST_SKIP() << "as the CPU's form is for short ones";
  for (const int splits : {1, 3, 16}) {
    for (const std::int64_t head_size : {64, 128, 256}) {
      for (const std::int64_t heads : {8, 6, 2}) {
        PrefillProblem problem({heads, 2, head_size, {{16, 2100}, {1, 777}, {31, 1024}}, true,
                                heads == 6 ? 0 : 16 * splits},
                               DType::kFloat16, &random());
        ExpectRight(&problem, fmt::format("{} parts of many keys", splits), 2, splits);
      }
      // Too many queries for the heads of a group in one tile.
      PrefillProblem problem({4, 2, head_size, {{200, 900}, {1, 300}}, true, 32},
                             DType::kBfloat16, &random());
      ExpectRight(&problem, fmt::format("{} parts", splits), 2, splits);
    }
  }
}

TEST_P(AttentionPrefillTest, AGraphWithPartsGoesByTheLengthsOfItsReplay) {
  PrefillProblem problem({4, 1, 128, {{15, 250}, {4, 100}}, true, 16}, DType::kBfloat16,
                         &random());
  OpBed bed = Bed();
  const Status captured =
      bed.Capture(kAttentionPrefillKernel, AttentionPrefillCpu, ArgsOf(&problem, &bed, 2, 3));
  ASSERT_TRUE(captured) << captured.error().ToString();
  for (const std::vector<Lengths>& lengths :
       {std::vector<Lengths>{{15, 250}, {4, 100}}, {{1, 1}, {2, 240}}, {{0, 9}, {5, 128}}}) {
    problem.Deal(&random(), &lengths);
    const Status ran = bed.Replay();
    ASSERT_TRUE(ran) << ran.error().ToString();
    problem.ExpectRight("replayed with parts");
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
      ASSERT_TRUE(bytes == first) << "heads of " << head_size << ", pages of " << page
                                  << ", run " << run;
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
