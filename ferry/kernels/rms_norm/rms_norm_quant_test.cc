// Tests of the quantised RMS norm on CPU, simulated device and GPU.

#include "ferry/kernels/rms_norm/rms_norm_quant.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "ferry/kernels/number.h"
#include "ferry/kernels/rms_norm/rms_norm.h"
#include "ferry/kernels/rms_norm/rms_norm_quant_plan.h"
#include "ferry/kernels/testing/op_bed.h"
#include "ferry/kernels/testing/quant_compare.h"

namespace ferry::kernels {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr float kNormQuantEps = 1e-6F;
constexpr double kUnbounded = std::numeric_limits<double>::infinity();

struct NormQuantCase {
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
  QuantMode mode = QuantMode::kStatic;
  bool residual = false;
  double bound = kUnbounded;
  double given_scale = 0.01;
  TestLayout x = {};
  TestLayout out = {};
};

// The tensors of one call, and their right results.
class NormQuantTensors {
 public:
  explicit NormQuantTensors(const NormQuantCase& given)
      : given_(given),
        x_(given.dtype, given.shape, given.x),
        residual_(given.dtype, given.shape, given.x),
        weight_(given.dtype, {given.shape.back()}),
        scale_(DType::kFloat32, {given.mode == QuantMode::kStatic ? 1 : RowCount(), 1}),
        bound_(DType::kFloat32, {1}),
        out_(DType::kFloat8E4m3, given.shape, given.out) {}

  void FillAnew(std::mt19937_64* random) {
    x_.FillNormally(random, 0.3, 2);
    residual_.FillNormally(random, -0.1, 3);
    weight_.FillNormally(random, 1, 0.2);
    scale_.Poison();
    if (given_.mode == QuantMode::kStatic) scale_.Set(0, given_.given_scale);
    bound_.Set(0, given_.bound);
    out_.Poison();
    x_before_ = x_.Values();
    residual_before_ = residual_.Values();
  }

  RmsNormQuantArgs Args(OpBed* bed) {
    RmsNormQuantArgs args;
    args.input = bed->View(x_);
    if (given_.residual) args.residual = bed->View(residual_);
    args.weight = bed->View(weight_);
    args.result = bed->View(out_);
    args.scale = bed->View(scale_);
    if (given_.bound != kUnbounded) args.scale_ub = bed->View(bound_);
    args.eps = kNormQuantEps;
    args.mode = given_.mode;
    return args;
  }

  void ExpectRight() {
    const std::string name = std::string(NameOf(given_.dtype)) + " " +
                             ShapeName(given_.shape.data(), static_cast<int>(given_.shape.size()));
    QuantOutcome outcome{
        .elements = Right(), .cols = given_.shape.back(), .roundings = {}, .scales = {}};
    outcome.roundings.of_results = 2;
    outcome.scales.assign(static_cast<std::size_t>(RowCount()),
                          static_cast<double>(static_cast<float>(given_.given_scale)));
    if (given_.mode == QuantMode::kPerToken) {
      outcome.scales = scale_.Values();
      ExpectRowScales(outcome, given_.bound, given_.dtype, name);
    }
    ExpectEachQuantised(outcome, given_.dtype, name);
    if (given_.residual) ExpectSums(name);
    for (const TestTensor* tensor : {&x_, &residual_, &weight_, &scale_, &out_}) {
      tensor->ExpectGapsUntouched(name);
    }
  }
  TestTensor& x() { return x_; }
  TestTensor& out() { return out_; }
  TestTensor& scale() { return scale_; }

 private:
  std::int64_t RowCount() const {
    std::int64_t rows = 1;
    for (std::size_t d = 0; d + 1 < given_.shape.size(); ++d) rows *= given_.shape[d];
    return rows;
  }
  Elements Right() const {
    const auto cols = static_cast<std::size_t>(given_.shape.back());
    Elements elements{out_.Values(), {}, {}};
    for (std::size_t row = 0; row < x_before_.size(); row += cols) {
      double squares = 0;
      for (std::size_t i = row; i < row + cols; ++i) squares += Sum(i) * Sum(i);
      const double root = std::sqrt(squares / static_cast<double>(cols) + double{kNormQuantEps});
      for (std::size_t i = row; i < row + cols; ++i) {
        const double factor = weight_.Get(static_cast<std::int64_t>(i - row)) / root;
        elements.right.push_back(Sum(i) * factor);
        const double residual = given_.residual ? residual_before_[i] : 0;
        elements.terms.push_back((std::fabs(x_before_[i]) + std::fabs(residual)) *
                                 std::fabs(factor));
      }
    }
    return elements;
  }
  double Sum(std::size_t i) const {
    return x_before_[i] + (given_.residual ? residual_before_[i] : 0);
  }
  void ExpectSums(const std::string& name) const {
    const std::vector<double> sums = residual_.Values();
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const float exact =
          static_cast<float>(x_before_[i]) + static_cast<float>(residual_before_[i]);
      ASSERT_EQ(sums[i], double{RoundTo(given_.dtype, exact)}) << name << " " << i;
    }
  }

  const NormQuantCase given_;
  TestTensor x_;
  TestTensor residual_;
  TestTensor weight_;
  TestTensor scale_;
  TestTensor bound_;
  TestTensor out_;
  std::vector<double> x_before_;
  std::vector<double> residual_before_;
};

class RmsNormQuantTest : public OpTest {
 protected:
  void Expect(const NormQuantCase& given) {
    NormQuantTensors tensors(given);
    ExpectRightResults(&tensors, kRmsNormQuantKernel, RmsNormQuantCpu);
  }
  // With either kind of scale, with and without a residual.
  void ExpectAll(NormQuantCase given) {
    for (const QuantMode mode : {QuantMode::kStatic, QuantMode::kPerToken}) {
      for (const bool residual : {false, true}) {
        given.mode = mode;
        given.residual = residual;
        Expect(given);
      }
    }
  }
};

TEST_P(RmsNormQuantTest, EveryRowSizeIsRightInEveryFormat) {
  for (const DType dtype : kFloatTypes) {
    for (const std::int64_t cols : kRowSizes) ExpectAll({.dtype = dtype, .shape = {3, cols}});
  }
}

TEST_P(RmsNormQuantTest, LongAndManyRowsAreRight) {
  for (const DType dtype : {DType::kFloat32, DType::kBfloat16}) {
    for (const std::int64_t cols : {16384, 20001, 33024}) {
      ExpectAll({.dtype = dtype, .shape = {2, cols}});
    }
  }
  for (const std::int64_t cols : {100, 128, 264, 1024}) {
    ExpectAll({.dtype = DType::kBfloat16, .shape = {OnGpu() ? 509 : 37, cols}});
  }
}

TEST_P(RmsNormQuantTest, ViewsWithGapsAreReadAndWrittenWhereTheyAre) {
  for (const DType dtype : kFloatTypes) {
    ExpectAll({.dtype = dtype,
               .shape = {7, 16, 128},
               .x = {.gap = {2048, 0, 0}, .skip = 64},
               .out = {.gap = {256, 16, 0}, .skip = 32}});
    ExpectAll({.dtype = dtype,
               .shape = {2, 3, 1027},
               .x = {.gap = {3, 5, 0}, .skip = 1},
               .out = {.gap = {1, 2, 0}, .skip = 3}});
  }
}

TEST_P(RmsNormQuantTest, OneToFourSizesAreRows) {
  ExpectAll({.shape = {129}});
  ExpectAll({.shape = {2, 3, 5, 64}});
  ExpectAll({.shape = {3, 2, 4, 33},
             .x = {.gap = {700, 90, 7, 0}, .skip = 1},
             .out = {.gap = {5, 3, 1, 0}, .skip = 3}});
}

TEST_P(RmsNormQuantTest, EmptyTensorsAreLeftAlone) {
  ExpectAll({.shape = {0, 128}});
  ExpectAll({.shape = {0, 3, 16}});
}

TEST_P(RmsNormQuantTest, NumbersBeyondTheScaleSaturate) {
  for (const std::int64_t cols : {128, 129, 20001}) {
    Expect({.dtype = DType::kBfloat16, .shape = {3, cols}, .given_scale = 0.0001});
    Expect({.dtype = DType::kBfloat16,
            .shape = {3, cols},
            .mode = QuantMode::kPerToken,
            .bound = 0.5});
  }
}

TEST_P(RmsNormQuantTest, EqualsTheNormItselfThatIsQuantisedAfterwards) {
  for (const std::int64_t cols : {129, 1024, 20000}) {
    NormQuantTensors tensors({.dtype = DType::kBfloat16, .shape = {9, cols}});
    tensors.FillAnew(&random());
    TestTensor plain(DType::kBfloat16, {9, cols});
    OpBed bed = Bed();
    const RmsNormQuantArgs args = tensors.Args(&bed);
    const RmsNormArgs same{args.input, args.weight, bed.View(plain), kNormQuantEps};
    Status ran = bed.Run(kRmsNormQuantKernel, RmsNormQuantCpu, args);
    ASSERT_TRUE(ran) << ran.error().ToString();
    ran = bed.Run(kRmsNormKernel, RmsNormCpu, same);
    ASSERT_TRUE(ran) << ran.error().ToString();
    const float inverse = QuantInverseOf(0.01F);
    std::int64_t others = 0;
    for (std::int64_t i = 0; i < 9 * cols; ++i) {
      const float right = RoundTo(DType::kFloat8E4m3, static_cast<float>(plain.Get(i)) * inverse);
      if (tensors.out().Get(i) != double{right}) ++others;
    }
    // Another order of a row's sum may change a bit of it.
    EXPECT_LE(others * 100, 9 * cols) << cols;
  }
}

TEST_P(RmsNormQuantTest, RowsOfZerosGetTheLeastScaleAndStayZeros) {
  NormQuantTensors tensors(
      {.dtype = DType::kBfloat16, .shape = {2, 256}, .mode = QuantMode::kPerToken});
  tensors.FillAnew(&random());
  tensors.x().Fill([](std::int64_t) { return 0; });
  OpBed bed = Bed();
  const Status ran = bed.Run(kRmsNormQuantKernel, RmsNormQuantCpu, tensors.Args(&bed));
  ASSERT_TRUE(ran) << ran.error().ToString();
  EXPECT_THAT(tensors.scale().Values(), Each(double{kMinQuantScale}));
  EXPECT_THAT(tensors.out().Values(), Each(0.0));
}

TEST_P(RmsNormQuantTest, AScaleOfZeroGivesZerosAndNanStaysNan) {
  for (const std::int64_t cols : {256, 257}) {
    NormQuantTensors tensors({.dtype = DType::kBfloat16, .shape = {2, cols}, .given_scale = 0});
    tensors.FillAnew(&random());
    tensors.x().Set(cols + 3, std::nan(""));
    OpBed bed = Bed();
    const Status ran = bed.Run(kRmsNormQuantKernel, RmsNormQuantCpu, tensors.Args(&bed));
    ASSERT_TRUE(ran) << ran.error().ToString();
    for (std::int64_t i = 0; i < cols; ++i) {
      ASSERT_EQ(tensors.out().Get(i), 0) << i;
      // A row with a NaN has no norm.
      ASSERT_TRUE(std::isnan(tensors.out().Get(cols + i))) << i;
    }
  }
}

TEST_P(RmsNormQuantTest, ACapturedCallWorksOnWhatIsThereWhenItIsReplayed) {
  for (const QuantMode mode : {QuantMode::kStatic, QuantMode::kPerToken}) {
    NormQuantTensors tensors(
        {.dtype = DType::kBfloat16, .shape = {33, 1024}, .mode = mode, .residual = true});
    ExpectRightReplays(&tensors, kRmsNormQuantKernel, RmsNormQuantCpu);
  }
}

FERRY_INSTANTIATE_OP_TEST(RmsNormQuantTest);

// ---- arguments and choices, without memory that is touched ------------------------------------

RmsNormQuantArgs NormQuantAt(std::int64_t rows, std::int64_t cols,
                             QuantMode mode = QuantMode::kStatic) {
  RmsNormQuantArgs args;
  args.input = TensorAt(1, {rows, cols});
  args.weight = TensorAt(2, {cols});
  args.result = TensorAt(3, {rows, cols}, DType::kFloat8E4m3);
  args.scale = TensorAt(4, {mode == QuantMode::kStatic ? 1 : rows}, DType::kFloat32);
  args.mode = mode;
  return args;
}
std::string NormQuantRefusal(const RmsNormQuantArgs& args) {
  const auto plan = PlanRmsNormQuant(args);
  return plan ? "accepted" : plan.error().message();
}

TEST(RmsNormQuantPlan, WrongArgumentsAreNamedWithWhatTheyMustBe) {
  EXPECT_EQ(NormQuantRefusal(NormQuantAt(4, 64)), "accepted");
  RmsNormQuantArgs args = NormQuantAt(4, 64);
  args.result.dtype = DType::kBfloat16;
  EXPECT_EQ(NormQuantRefusal(args), "rms_norm_quant: result is [4, 64] bf16; it must be e4m3");
  args = NormQuantAt(4, 64);
  args.scale = TensorAt(4, {4}, DType::kFloat32);
  EXPECT_EQ(NormQuantRefusal(args),
            "rms_norm_quant: scale is [4] fp32; it must be of 1 elements, one for the tensor");
  args = NormQuantAt(4, 64, QuantMode::kPerToken);
  args.scale = TensorAt(4, {3}, DType::kFloat32);
  EXPECT_THAT(NormQuantRefusal(args), HasSubstr("of 4 elements, one for each row"));
  args = NormQuantAt(4, 64);
  args.scale.dtype = DType::kBfloat16;
  EXPECT_THAT(NormQuantRefusal(args), HasSubstr("scale is [1] bf16; it must be fp32"));
  args = NormQuantAt(4, 64);
  args.scale_ub = TensorAt(5, {1}, DType::kFloat32);
  EXPECT_THAT(NormQuantRefusal(args), HasSubstr("left out where the scale is given"));
  args = NormQuantAt(4, 64);
  args.residual = args.input;
  EXPECT_THAT(NormQuantRefusal(args), HasSubstr("residual lies over input"));
  args = NormQuantAt(4, 64);
  args.result.data = args.input.data;
  EXPECT_THAT(NormQuantRefusal(args), HasSubstr("result lies over input"));
  args = NormQuantAt(4, 64);
  args.eps = -1;
  EXPECT_THAT(NormQuantRefusal(args), HasSubstr("eps is -1; it must be 0 or more"));
}

TEST(RmsNormQuantPlan, ElementsAndLongRowsHaveABlockForEachRow) {
  EXPECT_EQ(PlanRmsNormQuant(NormQuantAt(4096, 4096))->norm.form, RmsNormForm::kTwoWords);
  const RmsNormQuantPlan odd = *PlanRmsNormQuant(NormQuantAt(4096, 65));
  EXPECT_FALSE(odd.norm.wide);
  EXPECT_EQ(odd.norm.form, RmsNormForm::kTwoPass);
  EXPECT_EQ(odd.norm.blocks, 4096U);
  EXPECT_EQ(odd.norm.threads_per_row, 32U);
  RmsNormQuantArgs args = NormQuantAt(16, 128);
  args.result.data = static_cast<std::byte*>(args.result.data) + 4;  // half of what a word becomes
  EXPECT_FALSE(PlanRmsNormQuant(args)->norm.wide);
}

}  // namespace
}  // namespace ferry::kernels
