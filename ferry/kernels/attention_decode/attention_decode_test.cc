// Tests of decode attention on CPU, simulated device and GPU.

#include "ferry/kernels/attention_decode/attention_decode.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ferry/cuda/open_devices.h"
#include "ferry/kernels/attention_decode/decode_layout.h"
#include "ferry/kernels/testing/attention_formula.h"
#include "ferry/kernels/testing/compare.h"
#include "ferry/kernels/testing/op_bed.h"
#include "ferry/kernels/testing/test_tensor.h"

namespace ferry::kernels {
namespace {

using ::testing::HasSubstr;

struct DecodeSizes {
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t head_size;
  std::int64_t block;
  std::vector<std::int64_t> lengths;
  std::int64_t spare_blocks = 2;  // of the tables' rows, beyond the longest
};

std::string NameOfSizes(const DecodeSizes& sizes) {
  return fmt::format("{}/{} heads of {}, blocks of {}, {} sequences to {}", sizes.heads,
                     sizes.kv_heads, sizes.head_size, sizes.block, sizes.lengths.size(),
                     *std::max_element(sizes.lengths.begin(), sizes.lengths.end()));
}

std::int64_t BlocksFor(const DecodeSizes& sizes, std::int64_t length) {
  return (length + sizes.block - 1) / sizes.block;
}

// Sequences whose blocks lie anywhere in a cache. All that belongs to nobody is NaN: blocks without
// an owner, and tokens behind the end of a sequence.
class DecodeProblem {
 public:
  DecodeProblem(const DecodeSizes& sizes, DType dtype, std::mt19937_64* random,
                const TestLayout& rows = {}, const TestLayout& pages = {})
      : sizes_(sizes),
        q(dtype, {Batch(), sizes.heads, sizes.head_size}, rows),
        k(dtype, {Blocks(), sizes.block, sizes.kv_heads, sizes.head_size}, pages),
        v(dtype, {Blocks(), sizes.block, sizes.kv_heads, sizes.head_size}, pages),
        tables(DType::kInt32, {Batch(), MaxBlocks()}),
        lengths(DType::kInt32, {Batch()}),
        out(dtype, {Batch(), sizes.heads, sizes.head_size}, rows),
        workspace(DType::kFloat32, {0}) {
    Deal(random);
  }

  // Fills everything anew: with sequences no longer than those it was made with.
  void Deal(std::mt19937_64* random) {
    for (TestTensor* tensor : {&q, &k, &v, &out, &workspace}) tensor->Poison();
    q.FillNormally(random);
    std::vector<std::int64_t> blocks(static_cast<std::size_t>(Blocks()));
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), *random);
    for (std::int64_t b = 0; b < Batch(); ++b) {
      lengths.Set(b, static_cast<double>(Length(b)));
      for (std::int64_t i = 0; i < MaxBlocks(); ++i) {
        const bool used = i < BlocksFor(sizes_, Length(b));
        tables.Set(b * MaxBlocks() + i, used ? static_cast<double>(blocks.back()) : -1.0);
        if (used) blocks.pop_back();
      }
      for (std::int64_t t = 0; t < Length(b); ++t) FillToken(b, t, random);
    }
    KeepInputs();
  }
  void SetLengths(const std::vector<std::int64_t>& new_lengths) { sizes_.lengths = new_lengths; }

  // With a workspace that is just large enough for the plan: a bed is for one plan.
  AttentionDecodeArgs Args(OpBed* bed, const DecodePlan& plan = {}) {
    workspace = TestTensor(DType::kFloat32, {DecodeWorkspace(Shape(), plan.splits)});
    KeepInputs();
    return {.q = bed->View(q),
            .k_cache = bed->View(k),
            .v_cache = bed->View(v),
            .block_tables = bed->View(tables),
            .context_lens = bed->View(lengths),
            .out = bed->View(out),
            .workspace = bed->View(workspace),
            .scale = Scale(),
            .plan = plan};
  }

  std::vector<double> Formula(const Rounding& rounded) const {
    const std::vector<double> queries = q.Values();
    const std::vector<double> keys = k.Values();
    const std::vector<double> values = v.Values();
    const auto size = static_cast<std::size_t>(sizes_.head_size);
    std::vector<double> rows;
    for (std::int64_t i = 0; i < Batch() * sizes_.heads; ++i) {
      const std::int64_t b = i / sizes_.heads;
      SeenTokens seen{.keys = keys, .values = values, .tokens = {}};
      for (std::int64_t t = 0; t < Length(b); ++t) {
        const std::int64_t g = i % sizes_.heads * sizes_.kv_heads / sizes_.heads;
        seen.tokens.push_back(static_cast<std::size_t>(TokenElement(b, t, g)));
      }
      AddAttention(std::span(queries).subspan(static_cast<std::size_t>(i) * size, size), seen,
                   static_cast<double>(Scale()), rounded, &rows);
    }
    return rows;
  }

  void ExpectRight(const std::string& name) const {
    const DType dtype = q.view().dtype;
    ExpectRowsAsGoodAsNaive(
        {.got = out.Values(), .naive = Formula(RoundingTo(dtype)), .right = Formula(Exactly)},
        sizes_.head_size, dtype, name + ": " + NameOfSizes(sizes_));
    out.ExpectGapsUntouched(name);
    workspace.ExpectGapsUntouched(name);
  }
  void ExpectInputsUntouched(const std::string& name) const { inputs_->ExpectSame(name); }

  DecodeShape Shape() const {
    return {.batch = Batch(),
            .heads = sizes_.heads,
            .kv_heads = sizes_.kv_heads,
            .head_size = sizes_.head_size,
            .most_tokens = MaxBlocks() * sizes_.block};
  }

  // The first element of a token's key, and of its value.
  std::int64_t TokenElement(std::int64_t b, std::int64_t t, std::int64_t g) const {
    const auto block = static_cast<std::int64_t>(tables.Get(b * MaxBlocks() + t / sizes_.block));
    return ((block * sizes_.block + t % sizes_.block) * sizes_.kv_heads + g) * sizes_.head_size;
  }

 private:
  void KeepInputs() { inputs_.emplace(std::vector<TestTensor*>{&q, &k, &v, &tables, &lengths}); }
  std::int64_t Batch() const { return static_cast<std::int64_t>(sizes_.lengths.size()); }
  std::int64_t Length(std::int64_t b) const { return sizes_.lengths[static_cast<std::size_t>(b)]; }
  std::int64_t MaxBlocks() const { return max_blocks_; }
  std::int64_t Blocks() const { return blocks_; }
  float Scale() const { return 1.0F / std::sqrt(static_cast<float>(sizes_.head_size)); }

  void FillToken(std::int64_t b, std::int64_t t, std::mt19937_64* random) {
    std::normal_distribution<double> normal;
    const std::int64_t first = TokenElement(b, t, 0);
    for (std::int64_t i = 0; i < sizes_.kv_heads * sizes_.head_size; ++i) {
      k.Set(first + i, normal(*random));
      v.Set(first + i, normal(*random));
    }
  }

  DecodeSizes sizes_;
  const std::int64_t max_blocks_ =
      BlocksFor(sizes_, *std::max_element(sizes_.lengths.begin(), sizes_.lengths.end())) +
      sizes_.spare_blocks;
  const std::int64_t blocks_ =
      std::accumulate(sizes_.lengths.begin(), sizes_.lengths.end(), std::int64_t{0},
                      [this](std::int64_t sum, std::int64_t length) {
                        return sum + BlocksFor(sizes_, length);
                      }) +
      3;
  std::optional<Snapshot> inputs_;

 public:
  TestTensor q;
  TestTensor k;
  TestTensor v;
  TestTensor tables;
  TestTensor lengths;
  TestTensor out;
  TestTensor workspace;
};

constexpr int kTestMultiprocessors = 132;

cuda::DeviceFacts FactsOf(int compute_major) {
  cuda::DeviceFacts facts;
  facts.compute_major = compute_major;
  facts.multiprocessors = kTestMultiprocessors;
  return facts;
}

class AttentionDecodeTest : public OpTest {
 protected:
  void ExpectRight(DecodeProblem* problem, const DecodePlan& plan, const std::string& name) {
    OpBed bed = Bed();
    const Status ran =
        bed.Run(kAttentionDecodeKernel, AttentionDecodeCpu, problem->Args(&bed, plan));
    ASSERT_TRUE(ran) << name << ": " << ran.error().ToString();
    problem->ExpectRight(name);
    problem->ExpectInputsUntouched(name);
  }
  // As the device that runs this is, where there is one.
  cuda::DeviceFacts Facts() const {
    if (OnGpu()) {
      if (auto devices = cuda::RealDevices(); devices) {
        if (auto facts = (*devices)->Describe(0); facts) return *facts;
      }
    }
    return FactsOf(8);
  }
};
FERRY_INSTANTIATE_OP_TEST(AttentionDecodeTest);

// Groups of 1, 3, 4, 5, 7, 16, 20 and 40 heads; blocks that are no power of two; lengths beside a
// tile, a step and a block.
std::vector<DecodeSizes> DecodeTable() {
  return {{4, 4, 64, 16, {1, 15, 16, 17, 63}},
          {8, 2, 128, 32, {64, 65, 200}},
          {7, 1, 128, 48, {130, 1}},
          {12, 4, 64, 256, {255, 257, 40}},
          {16, 1, 128, 16, {127}},
          {20, 1, 64, 80, {79, 81}},
          {40, 1, 128, 16, {33}},
          {10, 2, 256, 64, {5, 129}}};
}

TEST_P(AttentionDecodeTest, EqualsTheFormulaForGroupsBlocksAndLengthsOfAllKinds) {
  for (const DecodeSizes& sizes : DecodeTable()) {
    for (const DType dtype : {DType::kBfloat16, DType::kFloat16}) {
      DecodeProblem problem(sizes, dtype, &random());
      ExpectRight(&problem, {}, "one part");
    }
  }
}

TEST_P(AttentionDecodeTest, IsTheSameInAnyNumberOfPartsAndStages) {
  DecodeProblem problem(
      {.heads = 8, .kv_heads = 2, .head_size = 128, .block = 32, .lengths = {1000, 3, 65}},
      DType::kBfloat16, &random());
  for (const int splits : {1, 2, 3, 7, 40}) {
    for (const int stages : {1, 2, 3}) {
      if (!OnGpu() && splits * stages > 1) continue;  // the CPU's form has neither
      problem.out.Poison();
      ExpectRight(&problem, {.splits = splits, .stages = stages},
                  fmt::format("{} parts, {} stages", splits, stages));
    }
  }
}

TEST_P(AttentionDecodeTest, IsRightByItsOwnPlan) {
  for (const DecodeSizes& sizes : DecodeTable()) {
    DecodeProblem problem(sizes, DType::kBfloat16, &random());
    const DecodePlan plan = PlanDecode(problem.Shape(), Facts());
    ExpectRight(&problem, plan, fmt::format("{} parts", plan.splits));
  }
}

TEST_P(AttentionDecodeTest, ReadsViewsWithGapsAndLeavesTheGapsAlone) {
  const TestLayout rows{.gap = {16, 8, 0}, .skip = 24};
  const TestLayout pages{.gap = {128, 64, 8, 0}, .skip = 8};
  for (const int splits : {1, 3}) {
    DecodeProblem problem(
        {.heads = 6, .kv_heads = 2, .head_size = 64, .block = 16, .lengths = {40, 150}},
        DType::kFloat16, &random(), rows, pages);
    ExpectRight(&problem, {.splits = splits}, "with gaps");
  }
}

// Pages of 1 token and of others that are no multiples of 16; heads before tokens.
TEST_P(AttentionDecodeTest, PagesOfAnySizeAndOrderAreRead) {
  std::vector<std::pair<bool, int>> orders = {{false, 1}, {true, 1}};
  if (OnGpu()) orders.insert(orders.end(), {{false, 3}, {true, 3}});
  for (const std::int64_t block : {1, 3, 16, 24, 512}) {
    for (const std::int64_t head_size : {64, 128, 256}) {
      for (const auto& [heads_first, splits] : orders) {
        DecodeProblem problem({6, 2, head_size, block, {1, 150, 0, 47}}, DType::kBfloat16,
                              &random(), {}, {.heads_first = heads_first});
        ExpectRight(&problem, {.splits = splits}, heads_first ? "heads first" : "tokens first");
      }
    }
  }
}

TEST_P(AttentionDecodeTest, SequencesWithoutTokensGiveZeros) {
  for (const int splits : {1, 2}) {
    DecodeProblem problem(
        {.heads = 4, .kv_heads = 2, .head_size = 128, .block = 16, .lengths = {0, 20, 0}},
        DType::kBfloat16, &random());
    ExpectRight(&problem, {.splits = splits}, "padding");
    EXPECT_EQ(problem.out.Get(0), 0);
    EXPECT_FALSE(std::signbit(problem.out.Get(0)));
  }
}

TEST_P(AttentionDecodeTest, NoSequencesAtAllAreFine) {
  for (const int splits : {1, 2}) {
    OpBed bed = Bed();
    TestTensor q(DType::kBfloat16, {0, 4, 64});
    TestTensor cache(DType::kBfloat16, {3, 16, 2, 64});
    TestTensor tables(DType::kInt32, {0, 5});
    TestTensor lengths(DType::kInt32, {0});
    const AttentionDecodeArgs args{.q = bed.View(q),
                                   .k_cache = bed.View(cache),
                                   .v_cache = bed.View(cache),
                                   .block_tables = bed.View(tables),
                                   .context_lens = bed.View(lengths),
                                   .out = bed.View(q),
                                   .workspace = {},
                                   .scale = 1,
                                   .plan = {.splits = splits}};
    const Status ran = bed.Run(kAttentionDecodeKernel, AttentionDecodeCpu, args);
    EXPECT_TRUE(ran) << ran.error().ToString();
  }
}

TEST_P(AttentionDecodeTest, AGraphGoesByTheLengthsAndTablesOfItsReplay) {
  for (const bool early : {false, true}) {
    DecodeProblem problem(
        {.heads = 8, .kv_heads = 2, .head_size = 128, .block = 16, .lengths = {300, 90, 7}},
        DType::kBfloat16, &random());
    OpBed bed = Bed();
    const AttentionDecodeArgs args = problem.Args(&bed, {.splits = 3, .early = early});
    const Status captured = bed.Capture(kAttentionDecodeKernel, AttentionDecodeCpu, args);
    ASSERT_TRUE(captured) << captured.error().ToString();
    for (const std::vector<std::int64_t>& lengths :
         {std::vector<std::int64_t>{300, 90, 7}, {1, 299, 64}, {0, 0, 128}}) {
      problem.SetLengths(lengths);
      problem.Deal(&random());
      const Status ran = bed.Replay();
      ASSERT_TRUE(ran) << ran.error().ToString();
      problem.ExpectRight(early ? "replayed, early" : "replayed");
      problem.ExpectInputsUntouched("replayed");
    }
  }
}

// The second of each call's kernels reads what the first has written, which the next call writes
// over.
TEST_P(AttentionDecodeTest, CallsBehindEachOtherShareAWorkspace) {
  for (const bool early : {false, true}) {
    DecodeProblem large(
        {.heads = 8, .kv_heads = 2, .head_size = 128, .block = 16, .lengths = {300, 90, 7}},
        DType::kBfloat16, &random());
    DecodeProblem small(
        {.heads = 4, .kv_heads = 1, .head_size = 64, .block = 32, .lengths = {150, 33}},
        DType::kBfloat16, &random());
    OpBed bed = Bed();
    const AttentionDecodeArgs first = large.Args(&bed, {.splits = 7, .early = early});
    AttentionDecodeArgs second = small.Args(&bed, {.splits = 5, .early = early});
    second.workspace = first.workspace;
    const Status ran = bed.RunEach<AttentionDecodeArgs>(kAttentionDecodeKernel, AttentionDecodeCpu,
                                                        {first, second, first, second, first});
    ASSERT_TRUE(ran) << ran.error().ToString();
    large.ExpectRight("one of two");
    small.ExpectRight("the other of two");
    large.ExpectInputsUntouched("one of two");
    small.ExpectInputsUntouched("the other of two");
  }
}

TEST_P(AttentionDecodeTest, AValueThatIsNanIsSeenInItsColumnOnly) {
  for (const int splits : {1, 3}) {
    DecodeProblem problem(
        {.heads = 4, .kv_heads = 2, .head_size = 128, .block = 16, .lengths = {130, 70}},
        DType::kBfloat16, &random());
    problem.v.Set(problem.TokenElement(0, 77, 1) + 5, NAN);
    ExpectRight(&problem, {.splits = splits}, "a value that is NaN");
    EXPECT_TRUE(std::isnan(problem.out.Get(2 * 128 + 5)));
    EXPECT_FALSE(std::isnan(problem.out.Get(1 * 128 + 5)));
  }
}

TEST_P(AttentionDecodeTest, OnAGpuLengthsBeyondTheTableAreCutAndNegativeOnesAreNone) {
  if (!OnGpu()) GTEST_SKIP() << "the CPU's form refuses them";
  for (const int splits : {1, 2}) {
    DecodeProblem problem({.heads = 4,
                           .kv_heads = 2,
                           .head_size = 128,
                           .block = 16,
                           .lengths = {96, 50, 96},
                           .spare_blocks = 0},
                          DType::kBfloat16, &random());
    problem.lengths.Set(0, 97);
    problem.lengths.Set(1, -1);
    problem.lengths.Set(2, 2147483647);
    problem.SetLengths({96, 0, 96});
    ExpectRight(&problem, {.splits = splits}, "lengths out of bounds");
  }
}

// Scores that exp() has no number for, one key that outweighs all, and the last of them the
// largest.
TEST_P(AttentionDecodeTest, LargeScoresDoNotOverflow) {
  DecodeProblem problem({.heads = 4, .kv_heads = 1, .head_size = 64, .block = 16, .lengths = {100}},
                        DType::kBfloat16, &random());
  problem.q.Fill([](std::int64_t) { return 30.0; });
  for (std::int64_t t = 0; t < 100; ++t) {
    const auto block = static_cast<std::int64_t>(problem.tables.Get(t / 16));
    for (std::int64_t d = 0; d < 64; ++d) {
      problem.k.Set((block * 16 + t % 16) * 64 + d, t == 99 ? 20 : t == 0 ? -20 : 0.1);
      problem.v.Set((block * 16 + t % 16) * 64 + d, static_cast<double>(t));
    }
  }
  for (const int splits : {1, 2}) {
    OpBed bed = Bed();
    ASSERT_TRUE(bed.Run(kAttentionDecodeKernel, AttentionDecodeCpu,
                        problem.Args(&bed, {.splits = splits})));
    for (const double value : problem.out.Values()) ASSERT_EQ(value, 99);
  }
}

TEST_P(AttentionDecodeTest, OnAGpuABlockThatIsNoneCountsAsZeros) {
  if (!OnGpu()) GTEST_SKIP() << "the CPU's form refuses it";
  DecodeProblem problem({.heads = 4, .kv_heads = 2, .head_size = 128, .block = 16, .lengths = {48}},
                        DType::kBfloat16, &random());
  for (const double wrong : {-1.0, 1e6}) {
    problem.Deal(&random());
    const auto block = static_cast<std::int64_t>(problem.tables.Get(1));
    problem.tables.Set(1, wrong);
    OpBed bed = Bed();
    const Status ran = bed.Run(kAttentionDecodeKernel, AttentionDecodeCpu, problem.Args(&bed, {}));
    ASSERT_TRUE(ran) << ran.error().ToString();
    problem.ExpectInputsUntouched("a block that is none");
    problem.tables.Set(1, static_cast<double>(block));
    for (std::int64_t i = 0; i < 16 * 2 * 128; ++i) {
      problem.k.Set(block * 16 * 2 * 128 + i, 0);
      problem.v.Set(block * 16 * 2 * 128 + i, 0);
    }
    problem.ExpectRight("a block that is none");
  }
}

TEST(AttentionDecodeCpu, HasFloatsAndHeadsOfAnySize) {
  std::mt19937_64 random(TestSeed());
  for (const DType dtype : kFloatTypes) {
    DecodeProblem problem(
        {.heads = 6, .kv_heads = 3, .head_size = 20, .block = 16, .lengths = {33, 0, 1}}, dtype,
        &random, {.gap = {3, 1, 0}, .skip = 1}, {.gap = {7, 5, 1, 0}, .skip = 3});
    OpBed bed(nullptr);
    ASSERT_TRUE(AttentionDecodeCpu(problem.Args(&bed)));
    problem.ExpectRight("on the CPU");
  }
}

TEST(AttentionDecodeCpu, NamesLengthsAndBlocksThatAreOutOfBounds) {
  std::mt19937_64 random(TestSeed());
  DecodeProblem problem(
      {.heads = 2, .kv_heads = 1, .head_size = 8, .block = 16, .lengths = {20, 40}},
      DType::kFloat32, &random);
  OpBed bed(nullptr);
  const auto message = [&] {
    const Status status = AttentionDecodeCpu(problem.Args(&bed));
    return status ? std::string("none") : status.error().message();
  };
  problem.lengths.Set(1, 81);
  EXPECT_THAT(message(), HasSubstr("sequence 1 has 81 tokens; it must have 0 to 80"));
  problem.lengths.Set(1, -1);
  EXPECT_THAT(message(), HasSubstr("sequence 1 has -1 tokens"));
  problem.lengths.Set(1, 40);
  problem.tables.Set(5 + 2, -1);
  EXPECT_THAT(message(), HasSubstr("block_tables[1, 2] is -1; with 40 tokens it must be 0 to 7"));
  problem.tables.Set(5 + 2, 8);
  EXPECT_THAT(message(), HasSubstr("block_tables[1, 2] is 8"));
  problem.tables.Set(5 + 2, 0);
  EXPECT_EQ(message(), "none");
}

// Each wrong argument, and a piece of the sentence that says so.
struct WrongDecode {
  const char* sentence;
  std::function<void(AttentionDecodeArgs*)> spoil;
};

AttentionDecodeArgs GoodDecodeArgs(void* memory) {
  auto* const bytes = static_cast<std::byte*>(memory);
  return {.q = Tensor::Contiguous(bytes, DType::kBfloat16, {2, 8, 128}),
          .k_cache = Tensor::Contiguous(bytes + 8192, DType::kBfloat16, {4, 16, 2, 128}),
          .v_cache = Tensor::Contiguous(bytes + 8192, DType::kBfloat16, {4, 16, 2, 128}),
          .block_tables = Tensor::Contiguous(bytes + 65536, DType::kInt32, {2, 3}),
          .context_lens = Tensor::Contiguous(bytes + 69632, DType::kInt32, {2}),
          .out = Tensor::Contiguous(bytes + 4096, DType::kBfloat16, {2, 8, 128}),
          .workspace = Tensor::Contiguous(bytes + 73728, DType::kFloat32, {2 * 2 * 8 * 130}),
          .scale = 0.1F,
          .plan = {.splits = 2}};
}

void ExpectDecodeSentences(const std::vector<WrongDecode>& cases,
                           Status (*check)(const AttentionDecodeArgs&), Code code) {
  alignas(16) static std::byte memory[128 * 1024];  // nobody reads it
  kernels::ExpectSentences(GoodDecodeArgs(memory), cases, check, code);
}

TEST(AttentionDecodeCheck, EachWrongArgumentHasItsSentence) {
  ExpectDecodeSentences(
      {{"q has 2 sizes; it must have 3", [](auto* args) { args->q.rank = 2; }},
       {"q is [2, 8, 128] int32", [](auto* args) { args->q.dtype = DType::kInt32; }},
       {"k_cache is [4, 16, 2, 128] fp16; it must be bf16, as q is",
        [](auto* args) { args->k_cache.dtype = DType::kFloat16; }},
       {"it must be [blocks, 1 to 2^30 tokens, kv_heads, head_size]",
        [](auto* args) { args->k_cache.shape[1] = 0; }},
       {"it must be of heads of 128, as q is", [](auto* args) { args->k_cache.shape[3] = 64; }},
       {"of a number of heads that q's 8 are a multiple of",
        [](auto* args) { args->k_cache.shape[2] = 3; }},
       {"v_cache is [5, 16, 2, 128] bf16; it must be [4, 16, 2, 128], as k_cache is",
        [](auto* args) { args->v_cache.shape[0] = 5; }},
       {"v_cache is [4, 16, 2, 128] bf16 with strides",
        [](auto* args) { args->v_cache.stride[3] = 2; }},
       {"it must be [2, 3], a row for each sequence",
        [](auto* args) { args->block_tables.shape[0] = 1; }},
       {"block_tables is [2, 3] int64; it must be int32",
        [](auto* args) { args->block_tables.dtype = DType::kInt64; }},
       {"of at most 2^30 tokens", [](auto* args) { args->block_tables.shape[1] = 1 << 28; }},
       {"context_lens is [3] int32; it must be [2]",
        [](auto* args) { args->context_lens.shape[0] = 3; }},
       {"out is [2, 8, 127] bf16", [](auto* args) { args->out.shape[2] = 127; }},
       {"out lies over q", [](auto* args) { args->out = args->q; }},
       {"scale is 0; it must be a number above 0", [](auto* args) { args->scale = 0; }},
       {"it must be a number above 0, and at most 2.3e38", [](auto* args) { args->scale = 3e38F; }},
       {"scale is nan", [](auto* args) { args->scale = NAN; }},
       {"plan.splits is 0; it must be 1 to 256", [](auto* args) { args->plan.splits = 0; }},
       {"plan.stages is 3; it must be 2 for heads of 64 and 256",
        [](auto* args) {
          for (Tensor* tensor : {&args->q, &args->out}) tensor->shape[2] = 64;
          for (Tensor* tensor : {&args->k_cache, &args->v_cache}) tensor->shape[3] = 64;
          args->plan.stages = 3;
        }},
       {"plan.stages is 4; it must be 1, 2 or 3", [](auto* args) { args->plan.stages = 4; }}},
      CheckAttentionDecode, Code::kInvalidArgument);
}

TEST(AttentionDecodeCheck, WhatOnlyTheGpuCannotDoHasItsSentence) {
  ExpectDecodeSentences({{"heads of 64, 128 and 256, use the CPU's",
                          [](auto* args) { args->q.dtype = DType::kFloat32; }},
                         {"heads of 64, 128 and 256", [](auto* args) { args->q.shape[2] = 96; }}},
                        CheckAttentionDecodeForDevice, Code::kUnsupported);
  ExpectDecodeSentences(
      {{"v_cache is [4, 16, 2, 128] bf16 with strides",
        [](auto* args) { args->v_cache.stride[1] = 260; }},
       {"multiples of 16 bytes",
        [](auto* args) { args->q.data = static_cast<std::byte*>(args->q.data) + 2; }},
       {"it must be [4160] or more, for 2 parts",
        [](auto* args) { args->workspace.shape[0] = 4159; }},
       {"workspace lies over out; it must be other memory",
        [](auto* args) { args->workspace.data = args->out.data; }},
       {"workspace lies over q", [](auto* args) { args->q.data = args->workspace.data; }},
       {"workspace lies over k_cache",
        [](auto* args) { args->workspace.data = args->k_cache.data; }},
       {"workspace has 0 sizes", [](auto* args) { args->workspace = {}; }}},
      CheckAttentionDecodeForDevice, Code::kInvalidArgument);
}

DecodePlan PlanFor(std::int64_t batch, std::int64_t heads, std::int64_t kv_heads,
                   std::int64_t tokens) {
  return PlanDecode({.batch = batch,
                     .heads = heads,
                     .kv_heads = kv_heads,
                     .head_size = 128,
                     .most_tokens = tokens},
                    FactsOf(9));
}

TEST(PlanDecode, OneSequenceIsCutUntilItFillsTheGpuOrItsPartsAreOneStep) {
  EXPECT_EQ(PlanFor(1, 32, 8, 1024).splits, 1024 / kDecodeStep);
  const DecodePlan plan = PlanFor(1, 32, 8, 131072);
  EXPECT_GE(plan.splits * 8, 2 * kTestMultiprocessors);
  EXPECT_TRUE(plan.early);
}

TEST(PlanDecode, ManySequencesAreNotCutWhereTheyFillTheGpuAnyway) {
  EXPECT_EQ(PlanFor(512, 32, 8, 4096).splits, 1);
  EXPECT_EQ(PlanFor(1, 32, 8, 1).splits, 1);
  EXPECT_EQ(PlanFor(0, 32, 8, 4096).splits, 1);
}

// Thread blocks are dealt out in waves, of which the last may be small.
TEST(PlanDecode, NoBatchTakesMuchLongerThanItsShareOfTheGpu) {
  constexpr std::int64_t kTokens = 65536;
  constexpr double kSlots = kTestMultiprocessors * 3;
  for (std::int64_t batch = 1; batch <= 300; ++batch) {
    const DecodePlan plan = PlanFor(batch, 32, 8, kTokens);
    ASSERT_GE(plan.splits, 1);
    ASSERT_LE(plan.splits, kMaxDecodeSplits);
    const auto parts = static_cast<double>(batch * 8 * plan.splits);
    const double steps = std::ceil(static_cast<double>(kTokens) / kDecodeStep / plan.splits);
    const double ideal = static_cast<double>(batch * 8 * kTokens) / kDecodeStep / kSlots;
    EXPECT_LE(std::ceil(parts / kSlots) * steps, 1.25 * ideal) << batch << ": " << plan.splits;
  }
}

TEST(PlanDecode, TheWorkspaceHasEachPartsOutputAndSum) {
  const DecodeShape shape{
      .batch = 3, .heads = 8, .kv_heads = 2, .head_size = 128, .most_tokens = 4096};
  EXPECT_EQ(DecodeWorkspace(shape, 1), 0);
  EXPECT_EQ(DecodeWorkspace(shape, 4), 3 * 8 * 4 * 130);
}

}  // namespace
}  // namespace ferry::kernels
