// Tests of the gated activations on CPU, simulated device and GPU.

#include "ferry/kernels/gated/gated.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "ferry/kernels/gated/gated_plan.h"
#include "ferry/kernels/number.h"
#include "ferry/kernels/testing/op_bed.h"

namespace ferry::kernels {
namespace {

using ::testing::HasSubstr;

constexpr Gate kGates[] = {Gate::kSilu, Gate::kGelu, Gate::kGeluTanh};

// By other formulas than the op's.
double GateByTanh(Gate gate, double x) {
  switch (gate) {
    case Gate::kSilu: return 0.5 * x * (1 + std::tanh(0.5 * x));
    case Gate::kGelu: return 0.5 * x * (1 + std::erf(x * std::sqrt(0.5)));
    case Gate::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
  }
  return 0;
}

struct GatedCase {
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;  // of the output
  Gate gate = Gate::kSilu;
  TestLayout x = {};
  TestLayout out = {};
};

class GatedTensors {
 public:
  explicit GatedTensors(const GatedCase& given)
      : given_(given),
        x_(given.dtype, Doubled(given.shape), given.x),
        out_(given.dtype, given.shape, given.out) {}

  void FillAnew(std::mt19937_64* random) {
    x_.FillNormally(random, 0, 3);
    before_ = x_.Values();
    out_.Poison();
  }
  GatedArgs Args(OpBed* bed) { return {bed->View(x_), bed->View(out_), given_.gate}; }
  TestTensor& x() { return x_; }

  void ExpectRight() { ExpectRight(out_.Values()); }
  void ExpectRight(const std::vector<double>& got) {
    const auto cols = static_cast<std::size_t>(given_.shape.back());
    Elements elements{got, {}, {}};
    for (std::size_t i = 0; i < got.size(); ++i) {
      const std::size_t at = i / cols * 2 * cols + i % cols;
      const double gate = GateByTanh(given_.gate, before_[at]);
      elements.right.push_back(gate * before_[at + cols]);
      // Gates are x (1 + f(x)) / 2, where f(x) is near -1 for what is negative.
      elements.terms.push_back(std::fabs(before_[at] * before_[at + cols]));
    }
    const std::string name = std::string(NameOf(given_.gate)) + " " +
                             ShapeName(given_.shape.data(), static_cast<int>(given_.shape.size()));
    ExpectEachRight(elements, {}, given_.dtype, name);
    x_.ExpectGapsUntouched(name);
    out_.ExpectGapsUntouched(name);
  }

 private:
  static std::vector<std::int64_t> Doubled(std::vector<std::int64_t> shape) {
    shape.back() *= 2;
    return shape;
  }

  const GatedCase given_;
  TestTensor x_;
  TestTensor out_;
  std::vector<double> before_;
};

class GatedTest : public OpTest {
 protected:
  void Expect(const GatedCase& given) {
    GatedTensors tensors(given);
    ExpectRightResults(&tensors, kGatedMulKernel, GatedMulCpu);
  }
};

TEST_P(GatedTest, EveryRowSizeIsRightInEveryFormat) {
  for (const DType dtype : kFloatTypes) {
    for (const std::int64_t cols : kRowSizes) {
      for (const Gate gate : kGates) Expect({.dtype = dtype, .shape = {3, cols}, .gate = gate});
    }
  }
}

TEST_P(GatedTest, ManyRowsAndManySizesAreRight) {
  Expect({.dtype = DType::kBfloat16, .shape = {1031, 24}});
  Expect({.dtype = DType::kBfloat16, .shape = {257, 3}});
  Expect({.dtype = DType::kFloat16, .shape = {3, 5, 7, 40}});
  Expect({.dtype = DType::kFloat32, .shape = {100}});
}

TEST_P(GatedTest, ViewsWithGapsAreReadAndWrittenWhereTheyAre) {
  for (const DType dtype : kFloatTypes) {
    Expect({.dtype = dtype,
            .shape = {5, 3, 64},
            .x = {.gap = {64, 128, 0}, .skip = 16},
            .out = {.gap = {0, 8, 0}, .skip = 8}});
    Expect({.dtype = dtype,
            .shape = {2, 5, 3, 64},
            .x = {.gap = {7, 5, 3, 0}, .skip = 1},
            .out = {.gap = {3, 2, 1, 0}, .skip = 3}});
  }
}

TEST_P(GatedTest, TheOutputMayBeTheFirstHalfOfTheInput) {
  for (const std::int64_t cols : {64, 1025}) {
    GatedTensors tensors({.dtype = DType::kBfloat16, .shape = {9, cols}});
    tensors.FillAnew(&random());
    OpBed bed = Bed();
    GatedArgs args = tensors.Args(&bed);
    args.out = args.x;
    args.out.shape[1] = cols;
    const Status ran = bed.Run(kGatedMulKernel, GatedMulCpu, args);
    ASSERT_TRUE(ran) << ran.error().ToString();
    std::vector<double> got;
    for (std::int64_t i = 0; i < 9 * cols; ++i) {
      got.push_back(tensors.x().Get(i / cols * 2 * cols + i % cols));
    }
    tensors.ExpectRight(got);
  }
}

TEST_P(GatedTest, GatesFarFromZeroAreOpenOrShut) {
  for (const Gate gate : kGates) {
    TestTensor x(DType::kFloat32, {4, 2});
    TestTensor out(DType::kFloat32, {4, 1});
    const std::vector<double> values = {1e4, 2, -1e4, 2, 1e30, 2, -1e30, 2};
    x.Fill([&](std::int64_t i) { return values[static_cast<std::size_t>(i)]; });
    OpBed bed = Bed();
    const GatedArgs args{bed.View(x), bed.View(out), gate};
    const Status ran = bed.Run(kGatedMulKernel, GatedMulCpu, args);
    ASSERT_TRUE(ran) << ran.error().ToString();
    EXPECT_EQ(out.Get(0), 2e4) << NameOf(gate);
    EXPECT_EQ(out.Get(1), 0) << NameOf(gate);
    EXPECT_EQ(out.Get(2), 2 * double{1e30F}) << NameOf(gate);
    EXPECT_EQ(out.Get(3), 0) << NameOf(gate);
  }
}

TEST_P(GatedTest, EmptyTensorsAreLeftAlone) {
  Expect({.shape = {0, 16}});
  Expect({.shape = {3, 0}});
}

TEST_P(GatedTest, ACapturedCallWorksOnWhatIsThereWhenItIsReplayed) {
  GatedTensors tensors({.dtype = DType::kBfloat16, .shape = {17, 3072}});
  ExpectRightReplays(&tensors, kGatedMulKernel, GatedMulCpu);
}

FERRY_INSTANTIATE_OP_TEST(GatedTest);

// ---- arguments and choices, without memory that is touched ------------------------------------

GatedArgs GatedAt(std::int64_t rows, std::int64_t cols, DType dtype = DType::kBfloat16) {
  const auto at = [&](std::uintptr_t address, std::int64_t width) {
    return Tensor::Contiguous(reinterpret_cast<void*>(address), dtype, {rows, width});
  };
  return {at(0x10000, 2 * cols), at(std::uintptr_t{1} << 40, cols), Gate::kSilu};
}
std::string GatedRefusal(const GatedArgs& args) {
  const auto plan = PlanGated(args);
  return plan ? "accepted" : plan.error().message();
}

TEST(GatedPlan, WrongArgumentsAreNamedWithWhatTheyMustBe) {
  EXPECT_EQ(GatedRefusal(GatedAt(4, 64)), "accepted");
  GatedArgs args = GatedAt(4, 64);
  args.x.shape[1] = 127;
  args.gate = Gate::kGelu;
  EXPECT_THAT(GatedRefusal(args), HasSubstr("gelu_and_mul: x is [4, 127] bf16 with strides "
                                            "[128, 1]; it must be of an even last size"));
  args = GatedAt(4, 64);
  args.out.shape[1] = 63;
  EXPECT_THAT(GatedRefusal(args), HasSubstr("it must be [4, 64], as the first half of x is"));
  args = GatedAt(4, 64, DType::kInt64);
  EXPECT_EQ(GatedRefusal(args), "silu_and_mul: x is [4, 128] int64; it must be fp32, fp16 or bf16");
  args = GatedAt(4, 64);
  args.out.dtype = DType::kFloat16;
  EXPECT_EQ(GatedRefusal(args), "silu_and_mul: out is [4, 64] fp16; it must be bf16, as x is");
  args = GatedAt(4, 64);
  args.x.stride[1] = 2;
  EXPECT_THAT(GatedRefusal(args), HasSubstr("of stride 1 along its last size"));
  args = GatedAt(4, 64);
  args.out.stride[0] = 0;
  EXPECT_THAT(GatedRefusal(args), HasSubstr("do not share memory"));
  args = GatedAt(4, 64);
  args.out = args.x;
  args.out.shape[1] = 64;
  EXPECT_EQ(GatedRefusal(args), "accepted");
  args.out.data = static_cast<std::byte*>(args.x.data) + 128;
  EXPECT_THAT(GatedRefusal(args), HasSubstr("out lies over the second half of x"));
  args.out = Tensor::Contiguous(args.x.data, DType::kBfloat16, {4, 64});
  EXPECT_THAT(GatedRefusal(args), HasSubstr("out lies over the first half of x in part"));
  args = GatedAt(4, 64);
  args.x = {};
  EXPECT_EQ(GatedRefusal(args), "silu_and_mul: x has 0 sizes; it must have 1 to 4");
}

TEST(GatedPlan, AnUnknownGateIsRefusedByItsValue) {
  GatedArgs args = GatedAt(4, 64);
  args.gate = Gate{99};
  EXPECT_EQ(GatedRefusal(args), "gated_mul: there is no gate 99");
  EXPECT_EQ(NameOf(args.gate), nullptr);
}

TEST(GatedPlan, GatesAreFoundByTheNamesOfTheirOps) {
  for (const Gate gate : kGates) {
    const auto found = GateNamed(NameOf(gate));
    ASSERT_TRUE(found) << found.error().ToString();
    EXPECT_EQ(*found, gate);
  }
  const auto unknown = GateNamed("swish_and_mul");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code(), Code::kInvalidArgument);
  EXPECT_EQ(unknown.error().message(), "there is no gated op \"swish_and_mul\"");
}

TEST(GatedPlan, TheFirstHalfOfManySizesMayBeTheOutput) {
  for (const std::int64_t outer : {1, 2}) {
    GatedArgs args;
    args.x =
        Tensor::Contiguous(reinterpret_cast<void*>(0x10000), DType::kBfloat16, {outer, 3, 128});
    args.out = args.x;
    args.out.shape[2] = 64;
    EXPECT_EQ(GatedRefusal(args), "accepted") << outer;
    args.out.data = static_cast<std::byte*>(args.x.data) + 2;
    EXPECT_THAT(GatedRefusal(args), HasSubstr("out lies over the first half of x in part"));
  }
}

TEST(GatedPlan, WordsOf16BytesAreForHalvesThatHaveThem) {
  EXPECT_TRUE(PlanGated(GatedAt(4, 64))->wide);
  EXPECT_FALSE(PlanGated(GatedAt(4, 68))->wide);  // the second half begins within a word
  EXPECT_TRUE(PlanGated(GatedAt(4, 68, DType::kFloat32))->wide);
  GatedArgs args = GatedAt(4, 64);
  args.x.data = static_cast<std::byte*>(args.x.data) + 2;
  EXPECT_FALSE(PlanGated(args)->wide);
  const GatedPlan plan = *PlanGated(GatedAt(8192, 12288));  // of Qwen3 8B
  EXPECT_EQ(plan.tiles.words, 1536U);
  EXPECT_EQ(plan.tiles.chunks * plan.tiles.threads_x, 1536U);
}

}  // namespace
}  // namespace ferry::kernels
