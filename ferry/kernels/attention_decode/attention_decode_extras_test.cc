// Tests of what decode attention does beyond plain attention: e4m3 caches, lse, sinks, windows and
// soft caps, on CPU, simulated device and GPU.

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "ferry/kernels/attention_decode/attention_decode.h"
#include "ferry/kernels/testing/attention_formula.h"
#include "ferry/kernels/testing/op_bed.h"

namespace ferry::kernels {
namespace {

using ::testing::HasSubstr;

struct ExtrasOfDecode {
  std::string name;
  bool lse = true;
  bool sinks = false;
  std::int64_t window = 0;
  float softcap = 0;
  float k_scale = 1;
  float v_scale = 1;
};

struct SizesOfDecode {
  std::int64_t heads = 8;
  std::int64_t kv_heads = 2;
  std::int64_t head_size = 128;
  std::int64_t block = 16;
  std::vector<std::int64_t> lengths;
};

// Sequences whose blocks lie in reverse order in a cache; blocks of nobody and tokens beyond a
// sequence's end are NaN. Blocks before the window have been released: their entries are -1.
class DecodeWithExtras {
 public:
  DecodeWithExtras(const SizesOfDecode& sizes, DType dtype, DType cache,
                   const ExtrasOfDecode& extras)
      : sizes_(sizes),
        extras_(extras),
        q_(dtype, {Batch(), sizes.heads, sizes.head_size}),
        k_(cache, {Blocks(), sizes.block, sizes.kv_heads, sizes.head_size}),
        v_(cache, {Blocks(), sizes.block, sizes.kv_heads, sizes.head_size}),
        tables_(DType::kInt32, {Batch(), Columns()}),
        lengths_(DType::kInt32, {Batch()}),
        out_(dtype, {Batch(), sizes.heads, sizes.head_size}),
        lse_(DType::kFloat32, {Batch(), sizes.heads}, {.gap = {3, 1}, .skip = 1}),
        sinks_(DType::kFloat32, {sizes.heads}),
        workspace_(DType::kFloat32, {0}) {}

  void FillAnew(std::mt19937_64* random) {
    for (TestTensor* tensor : {&k_, &v_, &out_, &lse_, &workspace_}) tensor->Poison();
    q_.FillNormally(random, 0, 1.5);
    sinks_.FillNormally(random, 0.5, 1);
    std::normal_distribution<double> normal;
    std::int64_t next = Blocks();
    for (std::int64_t b = 0; b < Batch(); ++b) {
      lengths_.Set(b, static_cast<double>(Length(b)));
      for (std::int64_t i = 0; i < Columns(); ++i) {
        const bool used = i * sizes_.block < Length(b) && (i + 1) * sizes_.block > FirstSeen(b);
        tables_.Set(b * Columns() + i, used ? static_cast<double>(--next) : -1);
      }
      for (std::int64_t t = FirstSeen(b); t < Length(b); ++t) {
        const std::int64_t first = TokenAt(b, t, 0);
        for (std::int64_t i = 0; i < sizes_.kv_heads * sizes_.head_size; ++i) {
          k_.Set(first + i, normal(*random));
          v_.Set(first + i, normal(*random));
        }
      }
    }
  }

  AttentionDecodeArgs Args(OpBed* bed) {
    workspace_ = TestTensor(DType::kFloat32, {DecodeWorkspace(Shape(), plan.splits)});
    AttentionDecodeArgs args;
    args.q = bed->View(q_);
    args.k_cache = bed->View(k_);
    args.v_cache = bed->View(v_);
    args.block_tables = bed->View(tables_);
    args.context_lens = bed->View(lengths_);
    args.out = bed->View(out_);
    args.workspace = bed->View(workspace_);
    args.scale = Scale();
    args.plan = plan;
    args.k_scale = extras_.k_scale;
    args.v_scale = extras_.v_scale;
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
    const std::string name = fmt::format("{}, {} parts, {} of {}", extras_.name, plan.splits,
                                         NameOf(k_.view().dtype), sizes_.head_size);
    ExpectRowsAsGoodAsNaive({.got = out_.Values(), .naive = naive, .right = right},
                            sizes_.head_size, dtype, name);
    if (extras_.lse) ExpectEachLse(lse_.Values(), lse, name);
    for (const TestTensor* tensor : {&out_, &lse_, &workspace_}) tensor->ExpectGapsUntouched(name);
  }

  DecodePlan plan;

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
    for (std::int64_t i = 0; i < Batch() * sizes_.heads; ++i) {
      const std::int64_t b = i / sizes_.heads;
      const std::int64_t h = i % sizes_.heads;
      SeenTokens seen{.keys = keys, .values = values, .tokens = {}};
      for (std::int64_t t = FirstSeen(b); t < Length(b); ++t) {
        seen.tokens.push_back(
            static_cast<std::size_t>(TokenAt(b, t, h * sizes_.kv_heads / sizes_.heads)));
      }
      const FormulaExtras extras{
          .scale = scale,
          .v_scale = narrow ? double{extras_.v_scale} : 1.0,
          .softcap = double{extras_.softcap},
          .sink = extras_.sinks ? &sinks[static_cast<std::size_t>(h)] : nullptr};
      const auto query = std::span(queries).subspan(static_cast<std::size_t>(i) * size, size);
      lse->push_back(AddAttentionWithExtras(query, seen, extras, rounded, &rows));
    }
    return rows;
  }
  // The query stands at Length(b) - 1.
  std::int64_t FirstSeen(std::int64_t b) const {
    return extras_.window > 0 ? std::max<std::int64_t>(Length(b) - extras_.window, 0) : 0;
  }
  std::int64_t TokenAt(std::int64_t b, std::int64_t t, std::int64_t g) const {
    const auto block = static_cast<std::int64_t>(tables_.Get(b * Columns() + t / sizes_.block));
    return ((block * sizes_.block + t % sizes_.block) * sizes_.kv_heads + g) * sizes_.head_size;
  }
  DecodeShape Shape() const {
    return {.batch = Batch(),
            .heads = sizes_.heads,
            .kv_heads = sizes_.kv_heads,
            .head_size = sizes_.head_size,
            .most_tokens = Columns() * sizes_.block};
  }
  std::int64_t Batch() const { return static_cast<std::int64_t>(sizes_.lengths.size()); }
  std::int64_t Length(std::int64_t b) const { return sizes_.lengths[static_cast<std::size_t>(b)]; }
  std::int64_t Columns() const {
    return *std::max_element(sizes_.lengths.begin(), sizes_.lengths.end()) / sizes_.block + 2;
  }
  std::int64_t Blocks() const { return Batch() * Columns(); }
  float Scale() const { return 1.0F / std::sqrt(static_cast<float>(sizes_.head_size)); }

  const SizesOfDecode sizes_;
  const ExtrasOfDecode extras_;
  TestTensor q_;
  TestTensor k_;
  TestTensor v_;
  TestTensor tables_;
  TestTensor lengths_;
  TestTensor out_;
  TestTensor lse_;
  TestTensor sinks_;
  TestTensor workspace_;
};

std::vector<ExtrasOfDecode> EachDecodeExtra() {
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

class AttentionDecodeExtrasTest : public OpTest {
 protected:
  void Expect(const SizesOfDecode& sizes, DType dtype, DType cache, const ExtrasOfDecode& extras) {
    for (const int splits : {1, 3}) {
      if (!OnGpu() && splits > 1) continue;  // the CPU's form has no parts
      DecodeWithExtras problem(sizes, dtype, cache, extras);
      problem.plan.splits = splits;
      ExpectRightResults(&problem, kAttentionDecodeKernel, AttentionDecodeCpu);
    }
  }
};
FERRY_INSTANTIATE_OP_TEST(AttentionDecodeExtrasTest);

TEST_P(AttentionDecodeExtrasTest, EachIsRightOverCachesOfItsOwnFormat) {
  for (const ExtrasOfDecode& extras : EachDecodeExtra()) {
    for (const DType dtype : {DType::kBfloat16, DType::kFloat16}) {
      Expect({.lengths = {1, 16, 200, 0, 65}}, dtype, dtype, extras);
    }
    Expect({.heads = 5, .kv_heads = 1, .head_size = 64, .block = 48, .lengths = {130, 7}},
           DType::kBfloat16, DType::kBfloat16, extras);
    Expect({.heads = 10, .kv_heads = 2, .head_size = 256, .block = 64, .lengths = {5, 129}},
           DType::kBfloat16, DType::kBfloat16, extras);
    Expect({.block = 1, .lengths = {5, 129}}, DType::kBfloat16, DType::kBfloat16, extras);
  }
}

TEST_P(AttentionDecodeExtrasTest, EachIsRightOverE4m3Caches) {
  std::vector<ExtrasOfDecode> all = EachDecodeExtra();
  all.push_back({.name = "scales", .k_scale = 0.7F, .v_scale = 3});
  all.push_back({.name = "scales and all",
                 .sinks = true,
                 .window = 40,
                 .softcap = 3,
                 .k_scale = 0.7F,
                 .v_scale = 3});
  for (const ExtrasOfDecode& extras : all) {
    for (const DType dtype : {DType::kBfloat16, DType::kFloat16}) {
      Expect({.lengths = {1, 16, 200, 0, 65}}, dtype, DType::kFloat8E4m3, extras);
    }
    Expect({.heads = 20, .kv_heads = 1, .head_size = 64, .block = 80, .lengths = {79, 81}},
           DType::kBfloat16, DType::kFloat8E4m3, extras);
    Expect({.heads = 10, .kv_heads = 2, .head_size = 256, .block = 64, .lengths = {5, 129}},
           DType::kFloat16, DType::kFloat8E4m3, extras);
    for (const std::int64_t head_size : {64, 128, 256}) {
      Expect({.head_size = head_size, .block = 7, .lengths = {5, 129}}, DType::kBfloat16,
             DType::kFloat8E4m3, extras);
    }
  }
}

TEST_P(AttentionDecodeExtrasTest, ACapturedCallGoesByWhatIsThereWhenItIsReplayed) {
  for (const DType cache : {DType::kBfloat16, DType::kFloat8E4m3}) {
    DecodeWithExtras problem(
        {.lengths = {300, 90, 7}}, DType::kBfloat16, cache,
        {.name = "replayed", .sinks = true, .window = 64, .softcap = 10, .v_scale = 2});
    problem.plan.splits = 3;
    ExpectRightReplays(&problem, kAttentionDecodeKernel, AttentionDecodeCpu);
  }
}

TEST(AttentionDecodeCpuExtras, HasFloatQueriesOverE4m3CachesOfAnyHeadSize) {
  std::mt19937_64 random(TestSeed());
  DecodeWithExtras problem({.heads = 6, .kv_heads = 3, .head_size = 20, .lengths = {33, 0, 1}},
                           DType::kFloat32, DType::kFloat8E4m3,
                           {.name = "floats", .k_scale = 0.5F, .v_scale = 0.25F});
  problem.FillAnew(&random);
  OpBed bed(nullptr);
  ASSERT_TRUE(AttentionDecodeCpu(problem.Args(&bed)));
  problem.ExpectRight();
}

struct WrongDecodeExtra {
  const char* sentence;
  std::function<void(AttentionDecodeArgs*)> spoil;
};

AttentionDecodeArgs GoodExtrasOfDecode() {
  AttentionDecodeArgs args;
  args.q = TensorAt(1, {2, 8, 128});
  args.k_cache = TensorAt(2, {4, 16, 2, 128}, DType::kFloat8E4m3);
  args.v_cache = TensorAt(3, {4, 16, 2, 128}, DType::kFloat8E4m3);
  args.block_tables = TensorAt(4, {2, 3}, DType::kInt32);
  args.context_lens = TensorAt(5, {2}, DType::kInt32);
  args.out = TensorAt(6, {2, 8, 128});
  args.lse = TensorAt(7, {2, 8}, DType::kFloat32);
  args.sinks = TensorAt(8, {8}, DType::kFloat32);
  args.scale = 0.1F;
  return args;
}

TEST(AttentionDecodeExtrasCheck, EachWrongArgumentHasItsSentence) {
  ExpectSentences(
      GoodExtrasOfDecode(),
      std::vector<WrongDecodeExtra>{
          {"v_cache is [4, 16, 2, 128] bf16; it must be e4m3, as k_cache is",
           [](auto* args) { args->v_cache.dtype = DType::kBfloat16; }},
          {"k_scale is 0; it must be a finite number above 0",
           [](auto* args) { args->k_scale = 0; }},
          {"v_scale is -1", [](auto* args) { args->v_scale = -1; }},
          {"lse is [2, 8] bf16; it must be fp32",
           [](auto* args) { args->lse.dtype = DType::kBfloat16; }},
          {"it must be [2, 8], one for each head of each query",
           [](auto* args) { args->lse.shape[1] = 7; }},
          {"out lies over lse", [](auto* args) { args->lse.data = args->out.data; }},
          {"lse lies over k_cache", [](auto* args) { args->lse.data = args->k_cache.data; }},
          {"it must be [8], one for each head of q", [](auto* args) { args->sinks.shape[0] = 4; }},
          {"window is -1; it must be 0 to 2^30", [](auto* args) { args->window = -1; }},
          {"softcap is -2; it must be 0 for none", [](auto* args) { args->softcap = -2; }},
          {"softcap is inf", [](auto* args) { args->softcap = HUGE_VALF; }},
          {"it must be 0 for none, or a number above 0, and at most 2.3e38",
           [](auto* args) { args->softcap = 3e38F; }},
          {"scale / softcap is inf, with a scale of 0.1",
           [](auto* args) { args->softcap = 1e-44F; }},
          {"scale / softcap is 0, with a scale of 1e-20",
           [](auto* args) {
             args->scale = 1e-20F;
             args->softcap = 1e38F;
           }},
          {"scale * k_scale is inf; it must be a number above 0, and at most 2.3e38",
           [](auto* args) {
             args->scale = 1e38F;
             args->k_scale = 1e3F;
           }},
          {"plan.stages is 3; it must be 2 for e4m3 caches",
           [](auto* args) { args->plan.stages = 3; }}},
      CheckAttentionDecode, Code::kInvalidArgument);
}

}  // namespace
}  // namespace ferry::kernels
