// Problems of prefill attention with their float64 results, and the fixture that runs all forms.
#pragma once
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ferry/kernels/attention_argument.h"
#include "ferry/kernels/attention_prefill/attention_prefill.h"
#include "ferry/kernels/testing/attention_formula.h"
#include "ferry/kernels/testing/compare.h"
#include "ferry/kernels/testing/op_bed.h"
#include "ferry/kernels/testing/test_tensor.h"

namespace ferry::kernels {

// PrefillLengths of a sequence.
struct PrefillLengths {
  std::int64_t queries;
  std::int64_t keys;
};

struct PrefillTestSizes {
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t head_size;
  std::vector<PrefillLengths> sequences;
  bool causal = true;
  std::int64_t page = 0;         // tokens; 0: keys are not paged
  std::int64_t spare_pages = 2;  // of the tables' rows, beyond the longest
};

inline std::string NameOfProblem(const PrefillTestSizes& sizes) {
  std::string name = fmt::format("{}/{} heads of {}, {}, pages of {}:", sizes.heads, sizes.kv_heads,
                                 sizes.head_size, sizes.causal ? "causal" : "full", sizes.page);
  for (const PrefillLengths& one : sizes.sequences)
    name += fmt::format(" {}x{}", one.queries, one.keys);
  return name;
}

// Sequences one behind the other, or whose keys lie in pages anywhere. All that belongs to nobody
// is NaN: pages without an owner, tokens behind a sequence's end in its last page, rows of q, k and
// v behind the last sequence.
class PrefillProblem {
 public:
  static constexpr std::int64_t kSpareRows = 3;

  PrefillProblem(const PrefillTestSizes& sizes, DType dtype, std::mt19937_64* random,
                 const TestLayout& rows = {}, const TestLayout& key_rows = {})
      : sizes_(sizes),
        q(dtype, {Sum(&PrefillLengths::queries) + kSpareRows, sizes.heads, sizes.head_size}, rows),
        k(dtype, KeyShape(), key_rows),
        v(dtype, KeyShape(), key_rows),
        q_ends(DType::kInt32, {Batch() + 1}),
        k_ends(DType::kInt32, {Batch() + 1}),
        tables(DType::kInt32, {Batch(), MaxPages()}),
        out(dtype, {Sum(&PrefillLengths::queries) + kSpareRows, sizes.heads, sizes.head_size},
            rows),
        workspace(DType::kFloat32, {0}) {
    Deal(random);
  }

  // Fills everything anew, with other lengths if there are any.
  void Deal(std::mt19937_64* random, const std::vector<PrefillLengths>* lengths = nullptr) {
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
  void SetLengths(const std::vector<PrefillLengths>& lengths) { sizes_.sequences = lengths; }

  // With a workspace that is just large enough for the parts: a bed is for one call.
  AttentionPrefillArgs Args(OpBed* bed, int stages = 2, int splits = 1) {
    const PrefillWork work{
        .queries = q.view().shape[0], .heads = sizes_.heads, .head_size = sizes_.head_size};
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

  const PrefillTestSizes& sizes() const { return sizes_; }

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
  const PrefillLengths& Of(std::int64_t b) const {
    return sizes_.sequences[static_cast<std::size_t>(b)];
  }
  std::int64_t Sum(std::int64_t PrefillLengths::*member) const {
    std::int64_t sum = 0;
    for (const PrefillLengths& one : sizes_.sequences) sum += one.*member;
    return sum;
  }
  std::int64_t Most(std::int64_t PrefillLengths::*member) const {
    std::int64_t most = 0;
    for (const PrefillLengths& one : sizes_.sequences) most = std::max(most, one.*member);
    return most;
  }
  std::int64_t MaxPages() const { return max_pages_; }
  std::vector<std::int64_t> KeyShape() const {
    if (sizes_.page == 0) {
      return {Sum(&PrefillLengths::keys) + kSpareRows, sizes_.kv_heads, sizes_.head_size};
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

  PrefillTestSizes sizes_;
  const std::int64_t most_queries_ = Most(&PrefillLengths::queries);
  const std::int64_t max_pages_ =
      sizes_.page == 0
          ? 1
          : (Most(&PrefillLengths::keys) + sizes_.page - 1) / sizes_.page + sizes_.spare_pages;
  const std::int64_t pages_ =
      sizes_.page == 0 ? 0 : Sum(&PrefillLengths::keys) / sizes_.page + Batch() + 2;
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

inline constexpr const char* kWgmmaSm90Name = "WgmmaSm90";

// Runs the forms that OpTest has, and kWgmmaSm90.
class PrefillTest : public OpTest {
 protected:
  void SetUp() override {
    OpTest::SetUp();
    if (!IsSkipped() && ByWgmmaSm90() && ComputeMajor() != 9) {
      GTEST_SKIP() << "only GPUs of compute capability 9.0 have this form";
    }
  }
  // Whether the test is of the form kWgmmaSm90, where that does what is asked.
  bool ByWgmmaSm90() const { return std::string_view(GetParam().name) == kWgmmaSm90Name; }

  AttentionPrefillArgs ArgsOf(PrefillProblem* problem, OpBed* bed, int stages = 2, int splits = 1) {
    AttentionPrefillArgs args = problem->Args(bed, stages, splits);
    const bool can = ByWgmmaSm90() && stages == 2 && !PagesAreScattered(problem->sizes().page);
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

#define FERRY_INSTANTIATE_WGMMA_SM90_TEST(Suite)                                 \
  INSTANTIATE_TEST_SUITE_P(                                                      \
      GpuWgmmaSm90, Suite,                                                       \
      ::testing::Values(cuda::DeviceCase{kWgmmaSm90Name, cuda::kRealCase.make}), \
      cuda::DeviceCaseName)

}  // namespace ferry::kernels
