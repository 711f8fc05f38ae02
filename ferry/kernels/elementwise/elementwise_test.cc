// Tests of the elementwise ops on CPU, simulated device and GPU.

#include "ferry/kernels/elementwise/elementwise.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "ferry/kernels/elementwise/elementwise_plan.h"
#include "ferry/kernels/number.h"
#include "ferry/kernels/testing/op_bed.h"

namespace ferry::kernels {
namespace {

using ::testing::HasSubstr;

struct ElementwiseCase {
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
  TestLayout in = {};
  TestLayout out = {};
  int in_place = -1;  // the input that is the output, if any
  GeluForm form = GeluForm::kExact;
};

std::string NameOfCase(const char* op, const ElementwiseCase& given) {
  return std::string(op) + " " +
         ShapeName(given.shape.data(), static_cast<int>(given.shape.size())) + " in place of " +
         std::to_string(given.in_place);
}

class AddGeluTensors {
 public:
  explicit AddGeluTensors(const ElementwiseCase& given)
      : given_(given),
        x_(given.dtype, given.shape, given.in),
        bias_(given.dtype, {given.shape.back()}),
        out_(given.dtype, given.shape, given.out) {}

  void FillAnew(std::mt19937_64* random) {
    x_.FillNormally(random, 0, 2);
    bias_.FillNormally(random, 0.5, 1);
    before_ = x_.Values();
    out_.Poison();
  }
  AddGeluArgs Args(OpBed* bed) {
    return {bed->View(x_), bed->View(bias_), bed->View(Out()), given_.form};
  }
  void ExpectRight() {
    const double root = std::sqrt(2 / std::acos(-1.0));
    const bool exact = given_.form == GeluForm::kExact;
    const auto gelu = [root, exact](double x) {
      return 0.5 * x *
             (1 + (exact ? std::erf(x / std::sqrt(2.0))
                         : std::tanh(root * (x + 0.044715 * x * x * x))));
    };
    Elements elements{Out().Values(), {}, {}};
    for (std::size_t i = 0; i < before_.size(); ++i) {
      const double bias = bias_.Get(static_cast<std::int64_t>(i) % given_.shape.back());
      elements.right.push_back(gelu(before_[i] + bias));
      elements.terms.push_back(std::fabs(before_[i]) + std::fabs(bias));
    }
    const std::string name =
        NameOfCase(exact ? "fused_add_gelu" : "fused_add_gelu by tanh", given_);
    ExpectEachRight(elements, {}, given_.dtype, name);
    for (const TestTensor* tensor : {&x_, &bias_, &out_}) tensor->ExpectGapsUntouched(name);
  }

 private:
  TestTensor& Out() { return given_.in_place == 0 ? x_ : out_; }

  const ElementwiseCase given_;
  TestTensor x_;
  TestTensor bias_;
  TestTensor out_;
  std::vector<double> before_;
};

class MulAddTensors {
 public:
  explicit MulAddTensors(const ElementwiseCase& given) : given_(given) {
    for (int i = 0; i < 3; ++i) tensors_.emplace_back(given.dtype, given.shape, given.in);
    tensors_.emplace_back(given.dtype, given.shape, given.out);
  }

  void FillAnew(std::mt19937_64* random) {
    before_.clear();
    for (std::size_t i = 0; i < 3; ++i) {
      tensors_[i].FillNormally(random, 0.1, 2);
      before_.push_back(tensors_[i].Values());
    }
    tensors_[3].Poison();
  }
  MulAddArgs Args(OpBed* bed) {
    return {bed->View(tensors_[0]), bed->View(tensors_[1]), bed->View(tensors_[2]),
            bed->View(Out())};
  }
  void ExpectRight() {
    Elements elements{Out().Values(), {}, {}};
    for (std::size_t i = 0; i < before_[0].size(); ++i) {
      const double product = before_[0][i] * before_[1][i];
      elements.right.push_back(product + before_[2][i]);
      elements.terms.push_back(std::fabs(product) + std::fabs(before_[2][i]));
    }
    const std::string name = NameOfCase("element_wise_mul_add", given_);
    ExpectEachRight(elements, {}, given_.dtype, name);
    for (const TestTensor& tensor : tensors_) tensor.ExpectGapsUntouched(name);
  }

 private:
  TestTensor& Out() {
    return tensors_[given_.in_place < 0 ? 3 : static_cast<std::size_t>(given_.in_place)];
  }

  const ElementwiseCase given_;
  std::vector<TestTensor> tensors_;
  std::vector<std::vector<double>> before_;
};

class ElementwiseTest : public OpTest {
 protected:
  void Expect(const ElementwiseCase& given) {
    if (given.in_place <= 0) {
      for (const GeluForm form : {GeluForm::kExact, GeluForm::kTanh}) {
        ElementwiseCase formed = given;
        formed.form = form;
        AddGeluTensors tensors(formed);
        ExpectRightResults(&tensors, kFusedAddGeluKernel, FusedAddGeluCpu);
      }
    }
    MulAddTensors tensors(given);
    ExpectRightResults(&tensors, kElementWiseMulAddKernel, ElementWiseMulAddCpu);
  }
};

TEST_P(ElementwiseTest, EveryRowSizeIsRightInEveryFormat) {
  for (const DType dtype : kFloatTypes) {
    for (const std::int64_t cols : kRowSizes) Expect({.dtype = dtype, .shape = {3, cols}});
  }
}

TEST_P(ElementwiseTest, ManyRowsAndManySizesAreRightInPlaceToo) {
  for (const int in_place : {-1, 0, 1, 2}) {
    Expect({.dtype = DType::kBfloat16, .shape = {1031, 24}, .in_place = in_place});
    Expect({.dtype = DType::kBfloat16, .shape = {519, 3}, .in_place = in_place});
    Expect({.dtype = DType::kFloat16, .shape = {3, 5, 7, 41}, .in_place = in_place});
    Expect({.dtype = DType::kFloat32, .shape = {10'000}, .in_place = in_place});
  }
}

TEST_P(ElementwiseTest, ViewsWithGapsAreReadAndWrittenWhereTheyAre) {
  for (const DType dtype : kFloatTypes) {
    for (const int in_place : {-1, 0, 2}) {
      Expect({.dtype = dtype,
              .shape = {5, 3, 64},
              .in = {.gap = {64, 128, 0}, .skip = 16},
              .out = {.gap = {0, 8, 0}, .skip = 8},
              .in_place = in_place});
      Expect({.dtype = dtype,
              .shape = {2, 5, 3, 67},
              .in = {.gap = {7, 5, 3, 0}, .skip = 1},
              .out = {.gap = {3, 2, 1, 0}, .skip = 3},
              .in_place = in_place});
    }
  }
}

TEST_P(ElementwiseTest, EmptyTensorsAreLeftAlone) {
  Expect({.shape = {0, 16}});
  Expect({.shape = {3, 0}});
}

TEST_P(ElementwiseTest, CapturedCallsWorkOnWhatIsThereWhenTheyAreReplayed) {
  const ElementwiseCase given{.dtype = DType::kBfloat16, .shape = {16, 128, 16}};
  AddGeluTensors add_gelu(given);
  MulAddTensors mul_add(given);
  OpBed add_gelu_bed = Bed();
  OpBed mul_add_bed = Bed();
  const Status first =
      add_gelu_bed.Capture(kFusedAddGeluKernel, FusedAddGeluCpu, add_gelu.Args(&add_gelu_bed));
  ASSERT_TRUE(first) << first.error().ToString();
  const Status second = mul_add_bed.Capture(kElementWiseMulAddKernel, ElementWiseMulAddCpu,
                                            mul_add.Args(&mul_add_bed));
  ASSERT_TRUE(second) << second.error().ToString();
  for (int round = 0; round < 3; ++round) {
    add_gelu.FillAnew(&random());
    mul_add.FillAnew(&random());
    ASSERT_TRUE(add_gelu_bed.Replay());
    ASSERT_TRUE(mul_add_bed.Replay());
    add_gelu.ExpectRight();
    mul_add.ExpectRight();
  }
}

FERRY_INSTANTIATE_OP_TEST(ElementwiseTest);

// ---- arguments and choices, without memory that is touched ------------------------------------

class ElementwisePlanTest : public ::testing::Test {
 protected:
  static AddGeluArgs AddGelu() {
    return {TensorAt(1, {4, 64}), TensorAt(2, {64}), TensorAt(3, {4, 64})};
  }
  static MulAddArgs MulAdd() {
    return {TensorAt(1, {4, 64}), TensorAt(2, {4, 64}), TensorAt(3, {4, 64}), TensorAt(4, {4, 64})};
  }
  static std::string Refusal(const AddGeluArgs& args) {
    const auto plan = PlanAddGelu(args);
    return plan ? "accepted" : plan.error().message();
  }
  static std::string Refusal(const MulAddArgs& args) {
    const auto plan = PlanMulAdd(args);
    return plan ? "accepted" : plan.error().message();
  }
};

TEST_F(ElementwisePlanTest, WrongArgumentsOfAddGeluAreNamedWithWhatTheyMustBe) {
  EXPECT_EQ(Refusal(AddGelu()), "accepted");
  AddGeluArgs args = AddGelu();
  args.bias = TensorAt(2, {63});
  EXPECT_EQ(Refusal(args),
            "fused_add_gelu: bias is [63] bf16; it must be [64], the last size of x");
  args.bias = TensorAt(2, {64}, DType::kFloat32);
  EXPECT_EQ(Refusal(args), "fused_add_gelu: bias is [64] fp32; it must be bf16, as x is");
  args.bias = TensorAt(2, {4, 64});
  EXPECT_EQ(Refusal(args), "fused_add_gelu: bias has 2 sizes; it must have 1");
  args = AddGelu();
  args.x.dtype = DType::kFloat8E4m3;
  EXPECT_EQ(Refusal(args), "fused_add_gelu: x is [4, 64] e4m3; it must be fp32, fp16 or bf16");
  args = AddGelu();
  args.out = TensorAt(3, {5, 64});
  EXPECT_EQ(Refusal(args), "fused_add_gelu: out is [5, 64] bf16; it must be [4, 64], as x is");
  args = AddGelu();
  args.x.stride[1] = 3;
  EXPECT_THAT(Refusal(args), HasSubstr("of stride 1 along its last size"));
  args = AddGelu();
  args.bias.data = args.out.data;
  EXPECT_EQ(Refusal(args), "fused_add_gelu: out lies over bias; it must be other memory");
  args = AddGelu();
  args.out.data = static_cast<std::byte*>(args.x.data) + 16;
  EXPECT_THAT(Refusal(args), HasSubstr("out lies over x in part"));
}

TEST_F(ElementwisePlanTest, WrongArgumentsOfMulAddAreNamedWithWhatTheyMustBe) {
  EXPECT_EQ(Refusal(MulAdd()), "accepted");
  MulAddArgs args = MulAdd();
  args.b = TensorAt(2, {4, 32});
  EXPECT_EQ(Refusal(args), "element_wise_mul_add: b is [4, 32] bf16; it must be [4, 64], as a is");
  args = MulAdd();
  args.c.dtype = DType::kFloat16;
  EXPECT_EQ(Refusal(args), "element_wise_mul_add: c is [4, 64] fp16; it must be bf16, as a is");
  args = MulAdd();
  args.out.data = static_cast<std::byte*>(args.c.data) + 16;
  EXPECT_THAT(Refusal(args), HasSubstr("out lies over c in part"));
  args.out = args.c;
  EXPECT_EQ(Refusal(args), "accepted");
  args.a.stride[0] = args.b.stride[0] = 0;  // one row for all: inputs may repeat, outputs not
  EXPECT_EQ(Refusal(args), "accepted");
  args.out.stride[0] = 0;
  EXPECT_THAT(Refusal(args), HasSubstr("do not share memory"));
}

TEST_F(ElementwisePlanTest, ContiguousTensorsAreOneRow) {
  MulAddArgs args = MulAdd();
  EXPECT_EQ(PlanMulAdd(args)->tiles.rows, 1U);
  EXPECT_EQ(PlanMulAdd(args)->cols, 256);
  args.c.stride[0] = 72;
  EXPECT_EQ(PlanMulAdd(args)->tiles.rows, 4U);
  EXPECT_TRUE(PlanMulAdd(args)->wide);
  args.c.stride[0] = 71;
  EXPECT_FALSE(PlanMulAdd(args)->wide);
  EXPECT_EQ(PlanAddGelu(AddGelu())->tiles.rows, 4U);
  EXPECT_TRUE(PlanAddGelu(AddGelu())->wide);
}

}  // namespace
}  // namespace ferry::kernels
