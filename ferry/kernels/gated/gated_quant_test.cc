// Tests of the quantised silu_and_mul on CPU, simulated device and GPU.

#include "ferry/kernels/gated/gated_quant.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "ferry/kernels/gated/gated_quant_plan.h"
#include "ferry/kernels/testing/op_bed.h"
#include "ferry/kernels/testing/quant_compare.h"

namespace ferry::kernels {
namespace {

using ::testing::HasSubstr;

struct GatedQuantCase {
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;  // of the output
  QuantMode mode = QuantMode::kStatic;
  double given_scale = 0.02;
  double bound = 0;  // 0: none
  TestLayout x = {};
  TestLayout out = {};
};

class GatedQuantTensors {
 public:
  explicit GatedQuantTensors(const GatedQuantCase& given)
      : given_(given),
        x_(given.dtype, Doubled(given.shape), given.x),
        out_(DType::kFloat8E4m3, given.shape, given.out),
        scale_(DType::kFloat32, {given.mode == QuantMode::kStatic ? 1 : RowCount()}),
        bound_(DType::kFloat32, {1}) {}

  void FillAnew(std::mt19937_64* random) {
    x_.FillNormally(random, 0, 3);
    before_ = x_.Values();
    out_.Poison();
    scale_.Poison();
    if (given_.mode == QuantMode::kStatic) scale_.Set(0, given_.given_scale);
    bound_.Set(0, given_.bound);
  }
  SiluAndMulQuantArgs Args(OpBed* bed) {
    SiluAndMulQuantArgs args{bed->View(x_), bed->View(out_), bed->View(scale_), {}, given_.mode};
    if (given_.bound > 0) args.scale_ub = bed->View(bound_);
    return args;
  }
  TestTensor& x() { return x_; }
  TestTensor& out() { return out_; }
  TestTensor& scale() { return scale_; }

  void ExpectRight() {
    const auto cols = static_cast<std::size_t>(given_.shape.back());
    QuantOutcome outcome{.elements = {out_.Values(), {}, {}},
                         .cols = given_.shape.back(),
                         .roundings = {},
                         .scales = scale_.Values()};
    for (std::size_t i = 0; i < outcome.elements.got.size(); ++i) {
      const std::size_t at = i / cols * 2 * cols + i % cols;
      const double gate = 0.5 * before_[at] * (1 + std::tanh(0.5 * before_[at]));
      outcome.elements.right.push_back(gate * before_[at + cols]);
      outcome.elements.terms.push_back(std::fabs(before_[at] * before_[at + cols]));
    }
    const std::string name = std::string(NameOf(given_.dtype)) + " " +
                             ShapeName(given_.shape.data(), static_cast<int>(given_.shape.size()));
    if (given_.mode == QuantMode::kPerToken) {
      const double bound =
          given_.bound > 0 ? given_.bound : std::numeric_limits<double>::infinity();
      ExpectRowScales(outcome, bound, given_.dtype, name);
    } else {
      outcome.scales.assign(static_cast<std::size_t>(RowCount()), scale_.Get(0));
    }
    ExpectEachQuantised(outcome, given_.dtype, name);
    for (const TestTensor* tensor : {&x_, &out_, &scale_}) tensor->ExpectGapsUntouched(name);
  }

 private:
  static std::vector<std::int64_t> Doubled(std::vector<std::int64_t> shape) {
    shape.back() *= 2;
    return shape;
  }
  std::int64_t RowCount() const {
    std::int64_t rows = 1;
    for (std::size_t d = 0; d + 1 < given_.shape.size(); ++d) rows *= given_.shape[d];
    return rows;
  }

  const GatedQuantCase given_;
  TestTensor x_;
  TestTensor out_;
  TestTensor scale_;
  TestTensor bound_;
  std::vector<double> before_;
};

class GatedQuantTest : public OpTest {
 protected:
  void ExpectBoth(GatedQuantCase given) {
    for (const QuantMode mode : {QuantMode::kStatic, QuantMode::kPerToken}) {
      given.mode = mode;
      GatedQuantTensors tensors(given);
      ExpectRightResults(&tensors, kSiluAndMulQuantKernel, SiluAndMulQuantCpu);
    }
  }
};

TEST_P(GatedQuantTest, EveryRowSizeIsRightInEveryFormat) {
  for (const DType dtype : kFloatTypes) {
    for (const std::int64_t cols : kRowSizes) ExpectBoth({.dtype = dtype, .shape = {3, cols}});
  }
}

TEST_P(GatedQuantTest, ManyRowsManySizesAndLongRowsAreRight) {
  ExpectBoth({.dtype = DType::kBfloat16, .shape = {1031, 24}});
  ExpectBoth({.dtype = DType::kBfloat16, .shape = {257, 3}});
  ExpectBoth({.dtype = DType::kFloat16, .shape = {3, 5, 7, 40}});
  ExpectBoth({.dtype = DType::kFloat32, .shape = {100}});
  ExpectBoth({.dtype = DType::kBfloat16, .shape = {2, 16384}});
  ExpectBoth({.dtype = DType::kBfloat16, .shape = {2, 16400}});
  ExpectBoth({.dtype = DType::kBfloat16, .shape = {0, 64}});
}

TEST_P(GatedQuantTest, ViewsWithGapsAreReadAndWrittenWhereTheyAre) {
  for (const DType dtype : kFloatTypes) {
    ExpectBoth({.dtype = dtype,
                .shape = {5, 3, 64},
                .x = {.gap = {64, 128, 0}, .skip = 16},
                .out = {.gap = {0, 8, 0}, .skip = 8}});
    ExpectBoth({.dtype = dtype,
                .shape = {2, 5, 3, 64},
                .x = {.gap = {7, 5, 3, 0}, .skip = 1},
                .out = {.gap = {3, 2, 1, 0}, .skip = 3}});
  }
}

TEST_P(GatedQuantTest, NumbersBeyondTheScaleSaturate) {
  ExpectBoth({.dtype = DType::kBfloat16, .shape = {3, 128}, .given_scale = 0.0001});
  GatedQuantTensors bounded(
      {.dtype = DType::kBfloat16, .shape = {3, 128}, .mode = QuantMode::kPerToken, .bound = 0.5});
  ExpectRightResults(&bounded, kSiluAndMulQuantKernel, SiluAndMulQuantCpu);
}

TEST_P(GatedQuantTest, NanStaysNanAndInfinitySaturatesBesideNumbers) {
  for (const std::int64_t cols : {64, 65}) {
    for (const QuantMode mode : {QuantMode::kStatic, QuantMode::kPerToken}) {
      GatedQuantTensors tensors({.dtype = DType::kBfloat16, .shape = {2, cols}, .mode = mode});
      tensors.FillAnew(&random());
      tensors.x().Fill([](std::int64_t) { return 1; });
      tensors.x().Set(3, std::nan(""));
      tensors.x().Set(2 * cols + 5, HUGE_VAL);
      OpBed bed = Bed();
      const Status ran = bed.Run(kSiluAndMulQuantKernel, SiluAndMulQuantCpu, tensors.Args(&bed));
      ASSERT_TRUE(ran) << ran.error().ToString();
      EXPECT_TRUE(std::isnan(tensors.out().Get(3)));
      EXPECT_GT(tensors.out().Get(2), 0);
      EXPECT_EQ(tensors.out().Get(cols + 5), 448);
      EXPECT_FALSE(std::isnan(tensors.out().Get(cols + 6)));
      if (mode == QuantMode::kPerToken) {
        // A NaN does not make the others' scale NaN.
        EXPECT_NEAR(tensors.scale().Get(0), 0.731 / 448, 1e-5);
        EXPECT_TRUE(std::isfinite(tensors.scale().Get(1)));
      }
    }
  }
}

TEST_P(GatedQuantTest, ACapturedCallWorksOnWhatIsThereWhenItIsReplayed) {
  for (const QuantMode mode : {QuantMode::kStatic, QuantMode::kPerToken}) {
    GatedQuantTensors tensors({.dtype = DType::kBfloat16, .shape = {17, 3072}, .mode = mode});
    ExpectRightReplays(&tensors, kSiluAndMulQuantKernel, SiluAndMulQuantCpu);
  }
}

FERRY_INSTANTIATE_OP_TEST(GatedQuantTest);

TEST(GatedQuantPlanTest, WrongArgumentsAreNamedAndFormsAreChosen) {
  const auto at = [](std::int64_t cols, QuantMode mode) {
    return SiluAndMulQuantArgs{
        TensorAt(1, {4, 2 * cols}), TensorAt(2, {4, cols}, DType::kFloat8E4m3),
        TensorAt(3, {mode == QuantMode::kStatic ? 1 : 4}, DType::kFloat32), Tensor{}, mode};
  };
  const auto refusal = [](const SiluAndMulQuantArgs& args) {
    const auto plan = PlanSiluAndMulQuant(args);
    return plan ? std::string("accepted") : plan.error().message();
  };
  SiluAndMulQuantArgs args = at(64, QuantMode::kStatic);
  EXPECT_EQ(refusal(args), "accepted");
  args.input.shape[1] = 127;
  EXPECT_THAT(refusal(args), HasSubstr("it must be of an even last size"));
  args = at(64, QuantMode::kStatic);
  args.result.shape[1] = 63;
  EXPECT_THAT(refusal(args), HasSubstr("it must be [4, 64], as the first half of input is"));
  args = at(64, QuantMode::kPerToken);
  args.result.data = args.input.data;
  EXPECT_THAT(refusal(args), HasSubstr("result lies over input"));
  using Form = GatedQuantForm;
  EXPECT_EQ(PlanSiluAndMulQuant(at(64, QuantMode::kStatic))->form, Form::kTiles);
  EXPECT_EQ(PlanSiluAndMulQuant(at(12288, QuantMode::kPerToken))->form, Form::kHeldWords);
  EXPECT_EQ(PlanSiluAndMulQuant(at(12288, QuantMode::kPerToken))->threads, 384U);
  EXPECT_EQ(PlanSiluAndMulQuant(at(65, QuantMode::kPerToken))->form, Form::kTwoPass);
}

}  // namespace
}  // namespace ferry::kernels
