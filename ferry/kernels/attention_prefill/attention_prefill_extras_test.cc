// Tests of what prefill attention does beyond plain attention: lse, sinks, windows and soft caps,
// on CPU, simulated device and GPU.

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
  std::int64_t page = 16;  // tokens
};

// Sequences one behind the other; pages lie in reverse order, and what belongs to nobody is NaN.
// Pages before the window of a sequence's first query have been released: their entries are -1.
class PrefillWithExtras {
 public:
  PrefillWithExtras(const SizesOfPrefill& sizes, DType dtype, const ExtrasOfPrefill& extras)
      : sizes_(sizes),
        extras_(extras),
        q_(dtype, {Sum(&LengthsOfPrefill::queries), sizes.heads, sizes.head_size}),
        k_(dtype, KeyShape()),
        v_(dtype, KeyShape()),
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
    return args;
  }

  void ExpectRight() {
    const DType dtype = q_.view().dtype;
    std::vector<double> lse;
    std::vector<double> unused;
    const std::vector<double> right = Formula(Exactly, &lse);
    const std::vector<double> naive = Formula(RoundingTo(dtype), &unused);
    const std::string name =
        fmt::format("{}, {}{} heads of {}", extras_.name, sizes_.causal ? "causal" : "full",
                    sizes_.paged ? ", paged" : "", sizes_.head_size);
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
    std::vector<double> rows;
    std::size_t row = 0;
    for (std::int64_t b = 0; b < Batch(); ++b) {
      for (std::int64_t i = 0; i < Of(b).queries * sizes_.heads; ++i) {
        const std::int64_t h = i % sizes_.heads;
        const SeenTokens seen{
            .keys = keys, .values = values, .tokens = SeenBy(b, i / sizes_.heads, h)};
        const FormulaExtras extras{
            .scale = double{Scale()},
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
    PrefillWithExtras problem(sizes, dtype, extras);
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
      Expect({.head_size = 64, .sequences = {{150, 150}}, .causal = causal}, DType::kFloat16,
             extras);
      Expect(
          {.heads = 2, .kv_heads = 1, .head_size = 256, .sequences = {{70, 100}}, .causal = causal},
          DType::kBfloat16, extras);
    }
  }
}

TEST_P(AttentionPrefillExtrasTest, ACapturedCallGoesByWhatIsThereWhenItIsReplayed) {
  PrefillWithExtras problem({.sequences = {{33, 70}, {9, 9}}}, DType::kBfloat16,
                            {.name = "replayed", .sinks = true, .window = 20, .softcap = 10});
  ExpectRightReplays(&problem, kAttentionPrefillKernel, AttentionPrefillCpu);
}

TEST(AttentionPrefillCpuExtras, HasFloatsAndHeadsOfAnySize) {
  std::mt19937_64 random(TestSeed());
  PrefillWithExtras problem({.heads = 6, .kv_heads = 3, .head_size = 20, .sequences = {{5, 9}}},
                            DType::kFloat32,
                            {.name = "floats", .sinks = true, .window = 3, .softcap = 4});
  problem.FillAnew(&random);
  OpBed bed(nullptr);
  ASSERT_TRUE(AttentionPrefillCpu(problem.Args(&bed)));
  problem.ExpectRight();
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
          {"stages is 3; it must be 2 with lse, sinks, a window or a softcap",
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

}  // namespace
}  // namespace ferry::kernels
