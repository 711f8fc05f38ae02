// Tests of what prefill attention does beyond plain attention: e4m3 keys, lse, sinks, windows and
// soft caps, on CPU, simulated device and GPU.

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ferry/kernels/attention_prefill/attention_prefill.h"
#include "ferry/kernels/testing/attention_formula.h"
#include "ferry/kernels/testing/op_bed.h"

namespace ferry::kernels {
namespace {

using ::testing::HasSubstr;

struct ExtrasOfPrefill {
  std::string name;
  bool lse = true;
  bool sinks = false;
  std::int64_t window = 0;
  float softcap = 0;
  float k_scale = 1;
  float v_scale = 1;
};

struct LengthsOfPrefill {
  std::int64_t queries;
  std::int64_t keys;
};

struct SizesOfPrefill {
  std::int64_t heads = 4;
  std::int64_t kv_heads = 2;
  std::int64_t head_size = 128;
  std::vector<LengthsOfPrefill> sequences;
  bool causal = true;
  bool paged = false;
  std::int64_t page = 16;    // tokens
  bool heads_first = false;  // in pages
};

// Sequences one behind the other; pages lie in reverse order, and what belongs to nobody is NaN.
// Pages before the window of a sequence's first query have been released: their entries are -1.
class PrefillWithExtras {
 public:
  PrefillWithExtras(const SizesOfPrefill& sizes, DType dtype, DType keys,
                    const ExtrasOfPrefill& extras)
      : sizes_(sizes),
        extras_(extras),
        q_(dtype, {Sum(&LengthsOfPrefill::queries), sizes.heads, sizes.head_size}),
        k_(keys, KeyShape(), {.heads_first = sizes.heads_first}),
        v_(keys, KeyShape(), {.heads_first = sizes.heads_first}),
        q_ends_(DType::kInt32, {Batch() + 1}),
        k_ends_(DType::kInt32, {Batch() + 1}),
        tables_(DType::kInt32, {Batch(), Columns()}),
        out_(dtype, {Sum(&LengthsOfPrefill::queries), sizes.heads, sizes.head_size}),
        lse_(DType::kFloat32, {Sum(&LengthsOfPrefill::queries), sizes.heads},
             {.gap = {2, 1}, .skip = 1}),
        sinks_(DType::kFloat32, {sizes.heads}) {}

  void FillAnew(std::mt19937_64* random) {
    for (TestTensor* tensor : {&k_, &v_, &out_, &lse_}) tensor->Poison();
    q_.FillNormally(random, 0, 1.5);
    sinks_.FillNormally(random, 0.5, 1);
    tables_.Fill([this](std::int64_t i) {
      const bool released = (i % Columns() + 1) * sizes_.page <= FirstSeen(i / Columns());
      return released ? -1 : static_cast<double>(Batch() * Columns() - 1 - i);
    });
    q_ends_.Set(0, 0);
    k_ends_.Set(0, 0);
    std::normal_distribution<double> normal;
    for (std::int64_t b = 0; b < Batch(); ++b) {
      q_ends_.Set(b + 1, q_ends_.Get(b) + static_cast<double>(Of(b).queries));
      k_ends_.Set(b + 1, k_ends_.Get(b) + static_cast<double>(Of(b).keys));
      for (std::int64_t t = sizes_.paged ? FirstSeen(b) : 0; t < Of(b).keys; ++t) {
        const std::int64_t first = KeyAt(b, t, 0);
        for (std::int64_t i = 0; i < sizes_.kv_heads * sizes_.head_size; ++i) {
          k_.Set(first + i, normal(*random));
          v_.Set(first + i, normal(*random));
        }
      }
    }
  }

  AttentionPrefillArgs Args(OpBed* bed) {
    AttentionPrefillArgs args;
    args.q = bed->View(q_);
    args.k = bed->View(k_);
    args.v = bed->View(v_);
    args.cu_seqlens_q = bed->View(q_ends_);
    args.cu_seqlens_k = bed->View(k_ends_);
    if (sizes_.paged) args.block_tables = bed->View(tables_);
    args.out = bed->View(out_);
    for (const LengthsOfPrefill& one : sizes_.sequences) {
      args.max_seqlen_q = std::max(args.max_seqlen_q, one.queries);
    }
    args.scale = Scale();
    args.causal = sizes_.causal;
    if (extras_.lse) args.lse = bed->View(lse_);
    if (extras_.sinks) args.sinks = bed->View(sinks_);
    args.window = extras_.window;
    args.softcap = extras_.softcap;
    args.k_scale = extras_.k_scale;
    args.v_scale = extras_.v_scale;
    return args;
  }

  void ExpectRight() {
    const DType dtype = q_.view().dtype;
    std::vector<double> lse;
    std::vector<double> unused;
    const std::vector<double> right = Formula(Exactly, &lse);
    const std::vector<double> naive = Formula(RoundingTo(dtype), &unused);
    const std::string name = fmt::format("{}, {}, {} in pages of {}, heads of {}", extras_.name,
                                         sizes_.causal ? "causal" : "full", NameOf(k_.view().dtype),
                                         sizes_.paged ? sizes_.page : 0, sizes_.head_size);
    ExpectRowsAsGoodAsNaive({.got = out_.Values(), .naive = naive, .right = right},
                            sizes_.head_size, dtype, name);
    if (extras_.lse) ExpectEachLse(lse_.Values(), lse, name);
    for (const TestTensor* tensor : {&out_, &lse_}) tensor->ExpectGapsUntouched(name);
  }

 private:
  std::vector<double> Formula(const Rounding& rounded, std::vector<double>* lse) const {
    const std::vector<double> queries = q_.Values();
    const std::vector<double> keys = k_.Values();
    const std::vector<double> values = v_.Values();
    const std::vector<double> sinks = sinks_.Values();
    const auto size = static_cast<std::size_t>(sizes_.head_size);
    const bool narrow = k_.view().dtype == DType::kFloat8E4m3;
    const double scale = double{Scale()} * (narrow ? double{extras_.k_scale} : 1.0);
    std::vector<double> rows;
    std::size_t row = 0;
    for (std::int64_t b = 0; b < Batch(); ++b) {
      for (std::int64_t i = 0; i < Of(b).queries * sizes_.heads; ++i) {
        const std::int64_t h = i % sizes_.heads;
        const SeenTokens seen{
            .keys = keys, .values = values, .tokens = SeenBy(b, i / sizes_.heads, h)};
        const FormulaExtras extras{
            .scale = scale,
            .v_scale = narrow ? double{extras_.v_scale} : 1.0,
            .softcap = double{extras_.softcap},
            .sink = extras_.sinks ? &sinks[static_cast<std::size_t>(h)] : nullptr};
        lse->push_back(AddAttentionWithExtras(std::span(queries).subspan(row++ * size, size), seen,
                                              extras, rounded, &rows));
      }
    }
    return rows;
  }
  std::vector<std::size_t> SeenBy(std::int64_t b, std::int64_t query, std::int64_t head) const {
    const std::int64_t position = query + Of(b).keys - Of(b).queries;
    std::vector<std::size_t> tokens;
    for (std::int64_t t = 0; t < Of(b).keys; ++t) {
      if (sizes_.causal && t > position) continue;
      if (extras_.window > 0 && t <= position - extras_.window) continue;
      tokens.push_back(
          static_cast<std::size_t>(KeyAt(b, t, head * sizes_.kv_heads / sizes_.heads)));
    }
    return tokens;
  }
  // By the first query.
  std::int64_t FirstSeen(std::int64_t b) const {
    const std::int64_t after = Of(b).keys - Of(b).queries + 1;
    return extras_.window > 0 ? std::max<std::int64_t>(after - extras_.window, 0) : 0;
  }
  std::int64_t KeyAt(std::int64_t b, std::int64_t t, std::int64_t g) const {
    std::int64_t token = static_cast<std::int64_t>(k_ends_.Get(b)) + t;
    if (sizes_.paged) {
      const auto page = static_cast<std::int64_t>(tables_.Get(b * Columns() + t / sizes_.page));
      token = page * sizes_.page + t % sizes_.page;
    }
    return (token * sizes_.kv_heads + g) * sizes_.head_size;
  }
  std::vector<std::int64_t> KeyShape() const {
    if (sizes_.paged) {
      return {Batch() * Columns(), sizes_.page, sizes_.kv_heads, sizes_.head_size};
    }
    return {Sum(&LengthsOfPrefill::keys), sizes_.kv_heads, sizes_.head_size};
  }
  std::int64_t Columns() const {
    std::int64_t most = 0;
    for (const LengthsOfPrefill& one : sizes_.sequences) most = std::max(most, one.keys);
    return most / sizes_.page + 2;
  }
  std::int64_t Sum(std::int64_t LengthsOfPrefill::*what) const {
    std::int64_t sum = 0;
    for (const LengthsOfPrefill& one : sizes_.sequences) sum += one.*what;
    return sum;
  }
  const LengthsOfPrefill& Of(std::int64_t b) const {
    return sizes_.sequences[static_cast<std::size_t>(b)];
  }
  std::int64_t Batch() const { return static_cast<std::int64_t>(sizes_.sequences.size()); }
  float Scale() const { return 1.0F / std::sqrt(static_cast<float>(sizes_.head_size)); }

  const SizesOfPrefill sizes_;
  const ExtrasOfPrefill extras_;
  TestTensor q_;
  TestTensor k_;
  TestTensor v_;
  TestTensor q_ends_;
  TestTensor k_ends_;
  TestTensor tables_;
  TestTensor out_;
  TestTensor lse_;
  TestTensor sinks_;
};

std::vector<ExtrasOfPrefill> EachPrefillExtra() {
  return {{.name = "lse"},
          {.name = "sinks", .sinks = true},
          {.name = "a window of 1", .window = 1},
          {.name = "a window of 16", .window = 16},
          {.name = "a window of 77", .window = 77},
          {.name = "softcap", .softcap = 2},
          {.name = "a softcap of 1e6", .softcap = 1e6F},
          {.name = "all", .sinks = true, .window = 50, .softcap = 5},
          {.name = "all but lse", .lse = false, .sinks = true, .window = 50, .softcap = 5}};
}

class AttentionPrefillExtrasTest : public OpTest {
 protected:
  void Expect(const SizesOfPrefill& sizes, DType dtype, const ExtrasOfPrefill& extras) {
    Expect(sizes, dtype, dtype, extras);
  }
  void Expect(const SizesOfPrefill& sizes, DType dtype, DType keys, const ExtrasOfPrefill& extras) {
    PrefillWithExtras problem(sizes, dtype, keys, extras);
    ExpectRightResults(&problem, kAttentionPrefillKernel, AttentionPrefillCpu);
  }
};
FERRY_INSTANTIATE_OP_TEST(AttentionPrefillExtrasTest);

// Sequences with a prefix, without one, of fewer keys than queries, and longer than a tile.
TEST_P(AttentionPrefillExtrasTest, EachIsRightForSequencesOfAllKinds) {
  for (const ExtrasOfPrefill& extras : EachPrefillExtra()) {
    for (const bool causal : {true, false}) {
      for (const bool paged : {false, true}) {
        Expect({.sequences = {{5, 5}, {1, 90}, {20, 7}, {0, 3}, {40, 130}},
                .causal = causal,
                .paged = paged},
               DType::kBfloat16, extras);
      }
      Expect({.sequences = {{5, 5}, {1, 90}, {20, 7}, {40, 130}},
              .causal = causal,
              .paged = true,
              .page = causal ? 1 : 24},
             DType::kFloat16, extras);
      if (!OnGpu()) continue;  // the CPU has one form for all sizes
      Expect({.head_size = 64, .sequences = {{150, 150}}, .causal = causal}, DType::kFloat16,
             extras);
      Expect(
          {.heads = 2, .kv_heads = 1, .head_size = 256, .sequences = {{70, 100}}, .causal = causal},
          DType::kBfloat16, extras);
    }
  }
}

std::vector<ExtrasOfPrefill> EachPrefillExtraOfE4m3() {
  std::vector<ExtrasOfPrefill> all = EachPrefillExtra();
  all.push_back({.name = "none", .lse = false});
  all.push_back({.name = "scales", .lse = false, .k_scale = 0.7F, .v_scale = 3});
  all.push_back({.name = "scales and all",
                 .sinks = true,
                 .window = 40,
                 .softcap = 3,
                 .k_scale = 0.7F,
                 .v_scale = 3});
  return all;
}

TEST_P(AttentionPrefillExtrasTest, EachIsRightOverE4m3Keys) {
  for (const ExtrasOfPrefill& extras : EachPrefillExtraOfE4m3()) {
    for (const bool causal : {true, false}) {
      for (const bool paged : {false, true}) {
        Expect({.sequences = {{5, 5}, {1, 90}, {20, 7}, {0, 3}, {20, 130}},
                .causal = causal,
                .paged = paged},
               causal ? DType::kBfloat16 : DType::kFloat16, DType::kFloat8E4m3, extras);
      }
      if (!OnGpu()) continue;
      Expect({.heads = 2, .head_size = 64, .sequences = {{131, 131}}, .causal = causal},
             DType::kFloat16, DType::kFloat8E4m3, extras);
      Expect({.heads = 3,
              .kv_heads = 1,
              .head_size = 256,
              .sequences = {{35, 50}, {3, 3}},
              .causal = causal},
             DType::kBfloat16, DType::kFloat8E4m3, extras);
    }
  }
}

// Tokens of a page before the window are NaN, as those of released pages and of nobody are.
TEST_P(AttentionPrefillExtrasTest, E4m3KeysLieInPagesOfAnySizeAndOrder) {
  const std::vector<ExtrasOfPrefill> each = {
      {.name = "none", .lse = false, .k_scale = 2, .v_scale = 0.5F},
      {.name = "a window", .window = 19},
      {.name = "all", .sinks = true, .window = 50, .softcap = 5, .k_scale = 0.3F}};
  for (const ExtrasOfPrefill& extras : each) {
    for (const std::int64_t page : {1, 7, 24, 48, 512}) {
      for (const std::int64_t head_size : {64, 128, 256}) {
        Expect({.head_size = head_size,
                .sequences = {{9, 9}, {3, 150}, {20, 7}},
                .causal = page != 7,
                .paged = true,
                .page = page,
                .heads_first = page != 48},
               DType::kBfloat16, DType::kFloat8E4m3, extras);
      }
    }
  }
}

TEST_P(AttentionPrefillExtrasTest, OnAGpuLongSequencesOfE4m3KeysAreRight) {
  if (!OnGpu()) GTEST_SKIP() << "as the CPU's form is for short ones";
  for (const std::int64_t page : {0, 1, 16, 48, 256}) {
    for (const std::int64_t head_size : {64, 128, 256}) {
      for (const std::int64_t window : {0, 200}) {
        Expect({.head_size = head_size,
                .sequences = {{300, 640}, {1, 777}, {128, 128}, {70, 17}},
                .causal = page != 48,
                .paged = page > 0,
                .page = std::max<std::int64_t>(page, 1)},
               page == 16 ? DType::kFloat16 : DType::kBfloat16, DType::kFloat8E4m3,
               {.name = "long", .window = window, .k_scale = 0.7F, .v_scale = 3});
      }
    }
  }
}

TEST_P(AttentionPrefillExtrasTest, ACapturedCallGoesByWhatIsThereWhenItIsReplayed) {
  for (const DType keys : {DType::kBfloat16, DType::kFloat8E4m3}) {
    PrefillWithExtras problem(
        {.sequences = {{33, 70}, {9, 9}}}, DType::kBfloat16, keys,
        {.name = "replayed", .sinks = true, .window = 20, .softcap = 10, .v_scale = 2});
    ExpectRightReplays(&problem, kAttentionPrefillKernel, AttentionPrefillCpu);
  }
}

TEST(AttentionPrefillCpuExtras, HasFloatsAndHeadsOfAnySize) {
  std::mt19937_64 random(TestSeed());
  for (const DType keys : {DType::kFloat32, DType::kFloat8E4m3}) {
    PrefillWithExtras problem({.heads = 6, .kv_heads = 3, .head_size = 20, .sequences = {{5, 9}}},
                              DType::kFloat32, keys,
                              {.name = "floats",
                               .sinks = true,
                               .window = 3,
                               .softcap = 4,
                               .k_scale = 0.5F,
                               .v_scale = 0.25F});
    problem.FillAnew(&random);
    OpBed bed(nullptr);
    ASSERT_TRUE(AttentionPrefillCpu(problem.Args(&bed)));
    problem.ExpectRight();
  }
}

struct WrongPrefillExtra {
  const char* sentence;
  std::function<void(AttentionPrefillArgs*)> spoil;
};

AttentionPrefillArgs GoodExtrasOfPrefill() {
  AttentionPrefillArgs args;
  args.q = TensorAt(1, {9, 8, 128});
  args.k = TensorAt(2, {9, 2, 128});
  args.v = TensorAt(3, {9, 2, 128});
  args.cu_seqlens_q = TensorAt(4, {2}, DType::kInt32);
  args.cu_seqlens_k = TensorAt(5, {2}, DType::kInt32);
  args.out = TensorAt(6, {9, 8, 128});
  args.lse = TensorAt(7, {9, 8}, DType::kFloat32);
  args.sinks = TensorAt(8, {8}, DType::kFloat32);
  args.max_seqlen_q = 9;
  args.scale = 0.1F;
  return args;
}

TEST(AttentionPrefillExtrasCheck, EachWrongArgumentHasItsSentence) {
  ExpectSentences(
      GoodExtrasOfPrefill(),
      std::vector<WrongPrefillExtra>{
          {"it must be [9, 8], one for each head of each query",
           [](auto* args) { args->lse.shape[0] = 7; }},
          {"lse lies over out", [](auto* args) { args->lse.data = args->out.data; }},
          {"sinks is [8] bf16; it must be fp32",
           [](auto* args) { args->sinks.dtype = DType::kBfloat16; }},
          {"window is -1; it must be 0 to 2^30", [](auto* args) { args->window = -1; }},
          {"softcap is -2; it must be 0 for none", [](auto* args) { args->softcap = -2; }},
          {"it must be 0 for none, or a number above 0, and at most 2.3e38",
           [](auto* args) { args->softcap = 3e38F; }},
          {"stages is 3; it must be 2 with lse, sinks, a window or a softcap, for e4m3 keys",
           [](auto* args) { args->stages = 3; }}},
      CheckAttentionPrefill, Code::kInvalidArgument);
}

TEST(AttentionPrefillExtrasCheck, TheWgmmaFormIsRefusedByNameAndNotChosen) {
  const auto spoilers = std::vector<std::function<void(AttentionPrefillArgs*)>>{
      [](auto* args) {
        args->lse = TensorAt(7, {9, 8}, DType::kFloat32);
      },
      [](auto* args) { args->sinks = TensorAt(8, {8}, DType::kFloat32); },
      [](auto* args) { args->window = 5; }, [](auto* args) { args->softcap = 5; }};
  for (const auto& spoil : spoilers) {
    AttentionPrefillArgs args = GoodExtrasOfPrefill();
    args.lse = args.sinks = {};
    EXPECT_EQ(*PrefillFormOf(args, true), PrefillForm::kWgmmaSm90);
    spoil(&args);
    EXPECT_EQ(*PrefillFormOf(args, true), PrefillForm::kCpAsync);
    args.form = PrefillForm::kWgmmaSm90;
    const auto refused = PrefillFormOf(args, true);
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message(),
                HasSubstr("the form kWgmmaSm90 has no lse, sinks, window or softcap"));
  }
}

AttentionPrefillArgs GoodE4m3Prefill() {
  AttentionPrefillArgs args = GoodExtrasOfPrefill();
  args.lse = args.sinks = {};
  args.k.dtype = args.v.dtype = DType::kFloat8E4m3;
  return args;
}

TEST(AttentionPrefillE4m3Check, EachWrongArgumentHasItsSentence) {
  ExpectSentences(
      GoodE4m3Prefill(),
      std::vector<WrongPrefillExtra>{
          {"v is [9, 2, 128] bf16; it must be e4m3, as k is",
           [](auto* args) { args->v.dtype = DType::kBfloat16; }},
          {"k is [9, 2, 128] bf16; it must be fp16, as q is",
           [](auto* args) {
             args->k.dtype = DType::kBfloat16;
             args->q.dtype = args->out.dtype = DType::kFloat16;
           }},
          {"q is [9, 8, 128] e4m3", [](auto* args) { args->q.dtype = DType::kFloat8E4m3; }},
          {"k_scale is 0; it must be a finite number above 0",
           [](auto* args) { args->k_scale = 0; }},
          {"k_scale is inf", [](auto* args) { args->k_scale = HUGE_VALF; }},
          {"v_scale is -1", [](auto* args) { args->v_scale = -1; }},
          {"v_scale is nan", [](auto* args) { args->v_scale = std::nanf(""); }},
          {"scale * k_scale is inf; it must be a number above 0, and at most 2.3e38",
           [](auto* args) {
             args->scale = 1e38F;
             args->k_scale = 1e3F;
           }},
          {"scale / softcap is inf",
           [](auto* args) {
             args->softcap = 1e-12F;
             args->k_scale = 1e30F;
           }},
          {"stages is 1; it must be 2 with lse, sinks, a window or a softcap, for e4m3 keys",
           [](auto* args) { args->stages = 1; }}},
      CheckAttentionPrefill, Code::kInvalidArgument);
}

TEST(AttentionPrefillE4m3Check, ScalesOfOtherKeysAreNotUsed) {
  AttentionPrefillArgs args = GoodExtrasOfPrefill();
  args.k_scale = args.v_scale = 0;
  EXPECT_TRUE(CheckAttentionPrefill(args));
  EXPECT_EQ(ScoreScaleOf(args), args.scale);
}

TEST(AttentionPrefillE4m3Check, TheWgmmaFormIsRefusedByNameAndNotChosenAndThereIsOnePart) {
  AttentionPrefillArgs args = GoodE4m3Prefill();
  ASSERT_TRUE(CheckAttentionPrefill(args));
  ASSERT_TRUE(CheckAttentionPrefillForDevice(args));
  EXPECT_EQ(*PrefillFormOf(args, true), PrefillForm::kCpAsync);
  args.form = PrefillForm::kWgmmaSm90;
  const auto refused = PrefillFormOf(args, true);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(),
              HasSubstr("k is [9, 2, 128] e4m3; it must be bf16 for the form kWgmmaSm90, which "
                        "reads no e4m3 keys; use the form kCpAsync or kAuto"));
  cuda::DeviceFacts hopper;
  hopper.compute_major = 9;
  hopper.multiprocessors = 132;
  args.k.shape[0] = args.v.shape[0] = 32768;
  EXPECT_EQ(PlanPrefill(WorkOf(args), hopper), 1);
  args.k.dtype = args.v.dtype = DType::kBfloat16;
  EXPECT_GT(PlanPrefill(WorkOf(args), hopper), 1);
}

}  // namespace
}  // namespace ferry::kernels
