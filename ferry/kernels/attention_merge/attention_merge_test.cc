// Tests of the merge of attention states on CPU, simulated device and GPU.

#include "ferry/kernels/attention_merge/attention_merge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "ferry/kernels/attention_merge/attention_merge_plan.h"
#include "ferry/kernels/testing/attention_formula.h"
#include "ferry/kernels/testing/op_bed.h"

namespace ferry::kernels {
namespace {

using ::testing::HasSubstr;

struct MergeCase {
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
  TestLayout outs = {};
  TestLayout lses = {};
  bool wants_lse = true;
  int in_place = 0;  // 1: out is out_a, 2: out is out_b
};

class MergeTensors {
 public:
  explicit MergeTensors(const MergeCase& given)
      : given_(given),
        a_(given.dtype, given.shape, given.outs),
        b_(given.dtype, given.shape, given.outs),
        out_(given.dtype, given.shape, given.outs),
        lse_a_(DType::kFloat32, Heads(given), given.lses),
        lse_b_(DType::kFloat32, Heads(given), given.lses),
        lse_(DType::kFloat32, Heads(given), given.lses) {}

  // Every fifth head has no keys in a, every third none in b, and so each fifteenth none at all.
  // What a part without keys holds is NaN, and its lse is -inf or inf by turns.
  void FillAnew(std::mt19937_64* random) {
    a_.FillNormally(random);
    b_.FillNormally(random, 1);
    lse_a_.FillNormally(random, 3, 4);
    lse_b_.FillNormally(random, 2, 4);
    const std::int64_t cols = given_.shape.back();
    for (std::int64_t row = 0; row < lse_a_.Numel(); ++row) {
      if (row % 5 == 0) Forget(&a_, &lse_a_, row, cols);
      if (row % 3 == 0) Forget(&b_, &lse_b_, row, cols);
    }
    out_.Poison();
    lse_.Poison();
    a_before_ = a_.Values();
    b_before_ = b_.Values();
  }
  AttentionMergeArgs Args(OpBed* bed) {
    return {bed->View(a_),     bed->View(lse_a_), bed->View(b_),
            bed->View(lse_b_), bed->View(Out()),  given_.wants_lse ? bed->View(lse_) : Tensor{}};
  }
  void ExpectRight() {
    const auto cols = static_cast<std::size_t>(given_.shape.back());
    Elements elements{Out().Values(), {}, {}};
    std::vector<double> lse;
    for (std::int64_t row = 0; row < lse_a_.Numel(); ++row) {
      const double part_a = PartOf(lse_a_, row);
      const double part_b = PartOf(lse_b_, row);
      const double sum = part_a + part_b;
      lse.push_back(std::log(sum));
      for (std::size_t i = 0; i < cols; ++i) {
        const std::size_t at = static_cast<std::size_t>(row) * cols + i;
        const double a = part_a > 0 ? part_a / sum * a_before_[at] : 0;
        const double b = part_b > 0 ? part_b / sum * b_before_[at] : 0;
        elements.right.push_back(a + b);
        elements.terms.push_back(std::fabs(a) + std::fabs(b));
      }
    }
    const std::string name = std::string(NameOf(given_.dtype)) + " " +
                             ShapeName(given_.shape.data(), static_cast<int>(given_.shape.size()));
    ExpectEachRight(elements, {}, given_.dtype, name);
    if (given_.wants_lse) ExpectEachLse(lse_.Values(), lse, name);
    for (const TestTensor* tensor : {&a_, &b_, &out_, &lse_a_, &lse_b_, &lse_}) {
      tensor->ExpectGapsUntouched(name);
    }
  }

 private:
  static std::vector<std::int64_t> Heads(const MergeCase& given) {
    return {given.shape[0], given.shape[1]};
  }
  static void Forget(TestTensor* out, TestTensor* lse, std::int64_t row, std::int64_t cols) {
    lse->Set(row, row % 2 == 0 ? -HUGE_VAL : HUGE_VAL);
    for (std::int64_t i = 0; i < cols; ++i) out->Set(row * cols + i, std::nan(""));
  }
  static double PartOf(const TestTensor& lse, std::int64_t row) {
    return std::isinf(lse.Get(row)) ? 0 : std::exp(lse.Get(row));
  }
  TestTensor& Out() { return given_.in_place == 1 ? a_ : given_.in_place == 2 ? b_ : out_; }

  const MergeCase given_;
  TestTensor a_;
  TestTensor b_;
  TestTensor out_;
  TestTensor lse_a_;
  TestTensor lse_b_;
  TestTensor lse_;
  std::vector<double> a_before_;
  std::vector<double> b_before_;
};

class AttentionMergeTest : public OpTest {
 protected:
  void Expect(const MergeCase& given) {
    MergeTensors tensors(given);
    ExpectRightResults(&tensors, kAttentionMergeKernel, AttentionMergeCpu);
  }
};
FERRY_INSTANTIATE_OP_TEST(AttentionMergeTest);

TEST_P(AttentionMergeTest, EachElementAndEachLseIsRight) {
  for (const DType dtype : kFloatTypes) {
    for (const int in_place : {0, 1, 2}) {
      Expect({.dtype = dtype, .shape = {31, 8, 128}, .in_place = in_place});
      Expect({.dtype = dtype, .shape = {7, 5, 33}, .in_place = in_place});
      Expect({.dtype = dtype, .shape = {1, 1, 256}, .wants_lse = false, .in_place = in_place});
    }
  }
}

TEST_P(AttentionMergeTest, ViewsWithGapsAreReadAndWrittenWhereTheyAre) {
  for (const DType dtype : kFloatTypes) {
    Expect({.dtype = dtype,
            .shape = {9, 4, 64},
            .outs = {.gap = {64, 16, 0}, .skip = 16},
            .lses = {.gap = {5, 2}, .skip = 3}});
    Expect({.dtype = dtype,
            .shape = {9, 4, 64},
            .outs = {.gap = {3, 5, 0}, .skip = 1},
            .lses = {.gap = {0, 1}, .skip = 0}});
  }
}

TEST_P(AttentionMergeTest, EmptyTensorsAreLeftAlone) { Expect({.shape = {0, 8, 64}}); }

TEST_P(AttentionMergeTest, ACapturedCallWorksOnWhatIsThereWhenItIsReplayed) {
  MergeTensors tensors({.dtype = DType::kBfloat16, .shape = {17, 8, 128}});
  ExpectRightReplays(&tensors, kAttentionMergeKernel, AttentionMergeCpu);
}

struct WrongMerge {
  const char* sentence;
  std::function<void(AttentionMergeArgs*)> spoil;
};

Status CheckMerge(const AttentionMergeArgs& args) {
  FERRY_TRY(PlanAttentionMerge(args));
  return Ok();
}

TEST(AttentionMergePlanTest, EachWrongArgumentHasItsSentence) {
  const AttentionMergeArgs good{TensorAt(1, {3, 8, 64}), TensorAt(2, {3, 8}, DType::kFloat32),
                                TensorAt(3, {3, 8, 64}), TensorAt(4, {3, 8}, DType::kFloat32),
                                TensorAt(5, {3, 8, 64}), TensorAt(6, {3, 8}, DType::kFloat32)};
  ExpectSentences(
      good,
      std::vector<WrongMerge>{
          {"merge_attention_states: out_b is [3, 8, 64] fp16; it must be bf16, as out_a is",
           [](auto* args) { args->out_b.dtype = DType::kFloat16; }},
          {"out_b is [3, 8, 32]", [](auto* args) { args->out_b.shape[2] = 32; }},
          {"lse_a is [3, 8] bf16; it must be fp32",
           [](auto* args) { args->lse_a.dtype = DType::kBfloat16; }},
          {"it must be [3, 8], the queries and the heads of out_a",
           [](auto* args) { args->lse_b.shape[1] = 4; }},
          {"lse_b has 0 sizes; it must have 2", [](auto* args) { args->lse_b = {}; }},
          {"lse lies over lse_a", [](auto* args) { args->lse = args->lse_a; }},
          {"out lies over out_a in part",
           [](auto* args) { args->out.data = static_cast<std::byte*>(args->out_a.data) + 16; }}},
      CheckMerge, Code::kInvalidArgument);
}

}  // namespace
}  // namespace ferry::kernels
