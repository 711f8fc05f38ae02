// Tests of RMS norm on CPU, simulated device and GPU.

#include "ferry/kernels/rms_norm/rms_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "ferry/kernels/number.h"
#include "ferry/kernels/rms_norm/rms_norm_plan.h"
#include "ferry/kernels/testing/op_bed.h"

namespace ferry::kernels {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr float kEps = 1e-6F;

struct NormCase {
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
  TestLayout x = {};
  TestLayout out = {};
  bool in_place = false;
  bool residual = false;
  bool crossed = false;  // residual_out is x, and out is residual
};

std::string NameOfCase(const NormCase& given) {
  return std::string(given.residual ? "with residual, " : "") +
         (given.in_place ? "in place, " : "") + (given.crossed ? "crossed, " : "") +
         ShapeName(given.shape.data(), static_cast<int>(given.shape.size()));
}

// The tensors of one call of either op.
class NormTensors {
 public:
  NormTensors(const NormCase& given, std::mt19937_64* random)
      : given_(given),
        x_(given.dtype, given.shape, given.x),
        residual_(given.dtype, given.shape, given.out),
        weight_(given.dtype, {given.shape.back()}),
        sum_(given.dtype, given.shape, given.x),
        out_(given.dtype, given.shape, given.out) {
    FillAnew(random);
  }

  void FillAnew(std::mt19937_64* random) {
    x_.FillNormally(random, 0.3, 2);
    residual_.FillNormally(random, -0.1, 3);
    weight_.FillNormally(random, 1, 0.2);
    sum_.Poison();
    out_.Poison();
    x_before_ = x_.Values();
    residual_before_ = residual_.Values();
  }

  RmsNormArgs Args(OpBed* bed) {
    return {bed->View(x_), bed->View(weight_), bed->View(Out()), kEps};
  }
  AddRmsNormArgs AddArgs(OpBed* bed) {
    return {bed->View(x_),    bed->View(residual_), bed->View(weight_),
            bed->View(Sum()), bed->View(Out()),     kEps};
  }

  Status Run(OpBed bed) {
    return given_.residual ? bed.Run(kAddRmsNormKernel, AddRmsNormCpu, AddArgs(&bed))
                           : bed.Run(kRmsNormKernel, RmsNormCpu, Args(&bed));
  }
  Status Capture(OpBed* bed) {
    return given_.residual ? bed->Capture(kAddRmsNormKernel, AddRmsNormCpu, AddArgs(bed))
                           : bed->Capture(kRmsNormKernel, RmsNormCpu, Args(bed));
  }

  // To the last bit the steps that the contract has, each rounded where it says so: but for a few
  // elements that lie so near to halfway between two numbers that another sum of squares makes a
  // difference.
  void ExpectTheContractsRounding() {
    const auto cols = static_cast<std::size_t>(given_.shape.back());
    const std::vector<double> got = Out().Values();
    std::size_t others = 0;
    for (std::size_t row = 0; row < got.size(); row += cols) {
      std::vector<float> sums(cols);
      double squares = 0;
      for (std::size_t i = 0; i < cols; ++i) {
        sums[i] = static_cast<float>(x_before_[row + i]);
        if (given_.residual) sums[i] += static_cast<float>(residual_before_[row + i]);
        squares += double{sums[i]} * sums[i];
      }
      const auto scale =
          static_cast<float>(1 / std::sqrt(squares / static_cast<double>(cols) + double{kEps}));
      for (std::size_t i = 0; i < cols; ++i) {
        const float normalised = RoundTo(given_.dtype, sums[i] * scale);
        const auto weight = static_cast<float>(weight_.Get(static_cast<std::int64_t>(i)));
        if (got[row + i] != double{RoundTo(given_.dtype, normalised * weight)}) ++others;
      }
    }
    EXPECT_LE(others * 100, got.size()) << NameOfCase(given_) << ", " << NameOf(given_.dtype);
  }

  void ExpectRight() {
    const auto cols = static_cast<std::size_t>(given_.shape.back());
    const DType dtype = given_.dtype;
    Elements out{Out().Values(), {}, {}};
    for (std::size_t row = 0; row < x_before_.size(); row += cols) {
      double squares = 0;
      for (std::size_t i = row; i < row + cols; ++i) {
        const double value = x_before_[i] + (given_.residual ? residual_before_[i] : 0);
        squares += value * value;
      }
      const double root = std::sqrt(squares / static_cast<double>(cols) + double{kEps});
      for (std::size_t i = row; i < row + cols; ++i) {
        const double residual = given_.residual ? residual_before_[i] : 0;
        const double scale = weight_.Get(static_cast<std::int64_t>(i - row)) / root;
        out.right.push_back((x_before_[i] + residual) * scale);
        out.terms.push_back((std::fabs(x_before_[i]) + std::fabs(residual)) * std::fabs(scale));
      }
    }
    const std::string name = NameOfCase(given_);
    // Rounded before the weight, and behind it.
    ExpectEachRight(out, {.of_results = 2}, dtype, name);
    if (given_.residual) {
      const std::vector<double> sums = Sum().Values();
      for (std::size_t i = 0; i < sums.size(); ++i) {
        // In fp32 and then in the format: rounding twice may go one further.
        const float exact =
            static_cast<float>(x_before_[i]) + static_cast<float>(residual_before_[i]);
        ASSERT_EQ(sums[i], double{RoundTo(dtype, exact)}) << name << " " << i;
      }
    }
    for (const TestTensor* tensor : {&x_, &residual_, &weight_, &sum_, &out_}) {
      tensor->ExpectGapsUntouched(name);
    }
  }

 private:
  TestTensor& Out() { return given_.crossed ? residual_ : given_.in_place ? x_ : out_; }
  TestTensor& Sum() { return given_.crossed ? x_ : given_.in_place ? residual_ : sum_; }

  const NormCase given_;
  TestTensor x_;
  TestTensor residual_;
  TestTensor weight_;
  TestTensor sum_;
  TestTensor out_;
  std::vector<double> x_before_;
  std::vector<double> residual_before_;
};

class RmsNormTest : public OpTest {
 protected:
  void Expect(const NormCase& given) {
    NormTensors tensors(given, &random());
    const Status ran = tensors.Run(Bed());
    ASSERT_TRUE(ran) << ran.error().ToString();
    tensors.ExpectRight();
  }
};

TEST_P(RmsNormTest, EveryRowSizeIsRightInEveryFormat) {
  for (const DType dtype : kFloatTypes) {
    for (const std::int64_t cols : kRowSizes) {
      for (const bool residual : {false, true}) {
        Expect({.dtype = dtype, .shape = {3, cols}, .residual = residual});
      }
    }
  }
}

// Beyond what registers hold, in words and in elements; in place, where what is read twice must not
// have been written meanwhile.
TEST_P(RmsNormTest, LongRowsAreRightInPlaceToo) {
  for (const DType dtype : {DType::kFloat32, DType::kBfloat16}) {
    for (const std::int64_t cols : {16384, 20001, 33024}) {
      for (const bool in_place : {false, true}) {
        for (const bool residual : {false, true}) {
          Expect({.dtype = dtype, .shape = {2, cols}, .in_place = in_place, .residual = residual});
        }
      }
    }
  }
}

TEST_P(RmsNormTest, ManyRowsAreRightInPlaceToo) {
  const std::int64_t rows = OnGpu() ? 509 : 37;  // the CPU takes one after another
  for (const std::int64_t cols : {100, 128, 264, 769, 1024, 2048}) {
    for (const bool in_place : {false, true}) {
      for (const bool residual : {false, true}) {
        Expect({.dtype = DType::kBfloat16,
                .shape = {rows, cols},
                .in_place = in_place,
                .residual = residual});
        if (cols == 100) {
          Expect({.shape = {rows, 512}, .in_place = in_place, .residual = residual});
        }
      }
    }
  }
}

TEST_P(RmsNormTest, TheSumMayTakeThePlaceOfTheInputAndTheOutputThatOfTheResidual) {
  for (const DType dtype : kFloatTypes) {
    for (const std::int64_t cols : {128, 769, 1024, 20001, 33024}) {
      Expect({.dtype = dtype, .shape = {5, cols}, .residual = true, .crossed = true});
    }
  }
}

TEST_P(RmsNormTest, ResultsAreRoundedBeforeTheWeightAndAfterIt) {
  for (const DType dtype : {DType::kFloat16, DType::kBfloat16}) {
    for (const std::int64_t cols : {100, 1024, 20000}) {
      for (const bool residual : {false, true}) {
        NormTensors tensors({.dtype = dtype, .shape = {20, cols}, .residual = residual}, &random());
        const Status ran = tensors.Run(Bed());
        ASSERT_TRUE(ran) << ran.error().ToString();
        tensors.ExpectTheContractsRounding();
      }
    }
  }
}

// bf16 cannot represent 259: it is 260 in residual_out, and itself where it is normalised.
TEST_P(RmsNormTest, TheSumIsNotRoundedForTheOutput) {
  TestTensor x(DType::kBfloat16, {3, 64});
  TestTensor residual(DType::kBfloat16, {3, 64});
  TestTensor weight(DType::kBfloat16, {64});
  TestTensor sum(DType::kBfloat16, {3, 64});
  TestTensor out(DType::kBfloat16, {3, 64});
  x.Fill([](std::int64_t) { return 256; });
  residual.Fill([](std::int64_t) { return 3; });
  weight.Fill([](std::int64_t) { return 1; });
  OpBed bed = Bed();
  const AddRmsNormArgs args{bed.View(x),   bed.View(residual), bed.View(weight),
                            bed.View(sum), bed.View(out),      0};
  const Status ran = bed.Run(kAddRmsNormKernel, AddRmsNormCpu, args);
  ASSERT_TRUE(ran) << ran.error().ToString();
  EXPECT_THAT(out.Values(), Each(1.0));
  EXPECT_THAT(sum.Values(), Each(260.0));
}

// The heads of q in a projection's output, and rows that begin anywhere.
TEST_P(RmsNormTest, ViewsWithGapsAreReadAndWrittenWhereTheyAre) {
  for (const DType dtype : kFloatTypes) {
    for (const bool residual : {false, true}) {
      const NormCase heads{.dtype = dtype,
                           .shape = {7, 16, 128},
                           .x = {.gap = {2048, 0, 0}, .skip = 64},
                           .residual = residual};
      Expect(heads);
      NormCase odd = heads;
      odd.x = {.gap = {3, 5, 0}, .skip = 1};
      odd.out = {.gap = {1, 2, 0}, .skip = 3};
      Expect(odd);
      odd.shape = {2, 3, 1027};
      odd.in_place = true;
      Expect(odd);
    }
  }
}

TEST_P(RmsNormTest, OneToFourSizesAreRows) {
  for (const bool residual : {false, true}) {
    Expect({.shape = {129}, .residual = residual});
    Expect({.shape = {2, 3, 5, 64}, .residual = residual});
    Expect({.shape = {3, 2, 4, 33},
            .x = {.gap = {700, 90, 7, 0}, .skip = 1},
            .out = {.gap = {5, 3, 1, 0}, .skip = 3},
            .residual = residual});
  }
}

TEST_P(RmsNormTest, EmptyTensorsAreLeftAlone) {
  Expect({.shape = {0, 128}});
  Expect({.shape = {0, 128}, .residual = true});
  Expect({.shape = {4, 0, 16}});
}

TEST_P(RmsNormTest, ZerosStayZerosAndGreatNumbersDoNotOverflow) {
  for (const double value : {0.0, 1e4, 6e4}) {
    TestTensor x(DType::kFloat16, {2, 256});
    TestTensor weight(DType::kFloat16, {256});
    TestTensor out(DType::kFloat16, {2, 256});
    x.Fill([value](std::int64_t) { return value; });
    weight.Fill([](std::int64_t) { return 1; });
    OpBed bed = Bed();
    const RmsNormArgs args{bed.View(x), bed.View(weight), bed.View(out), kEps};
    const Status ran = bed.Run(kRmsNormKernel, RmsNormCpu, args);
    ASSERT_TRUE(ran) << ran.error().ToString();
    for (const double got : out.Values()) ASSERT_NEAR(got, value == 0 ? 0 : 1, 1e-3);
  }
}

TEST_P(RmsNormTest, ACapturedCallWorksOnWhatIsThereWhenItIsReplayed) {
  for (const bool residual : {false, true}) {
    NormTensors tensors({.dtype = DType::kBfloat16, .shape = {33, 1024}, .residual = residual},
                        &random());
    OpBed bed = Bed();
    const Status captured = tensors.Capture(&bed);
    ASSERT_TRUE(captured) << captured.error().ToString();
    for (int round = 0; round < 3; ++round) {
      tensors.FillAnew(&random());
      const Status replayed = bed.Replay();
      ASSERT_TRUE(replayed) << replayed.error().ToString();
      tensors.ExpectRight();
    }
  }
}

FERRY_INSTANTIATE_OP_TEST(RmsNormTest);

// ---- arguments and choices, without memory that is touched ------------------------------------

class RmsNormPlanTest : public ::testing::Test {
 protected:
  static constexpr std::uintptr_t kAt = 0x10000;

  static Tensor At(std::uintptr_t address, std::initializer_list<std::int64_t> shape,
                   DType dtype = DType::kBfloat16) {
    return Tensor::Contiguous(reinterpret_cast<void*>(address), dtype, shape);
  }
  static RmsNormArgs Args(std::int64_t rows, std::int64_t cols, DType dtype = DType::kBfloat16) {
    return {At(kAt, {rows, cols}, dtype), At(0x100, {cols}, dtype),
            At(std::uintptr_t{1} << 40, {rows, cols}, dtype), kEps};
  }
  static std::string Refusal(const RmsNormArgs& args) {
    const auto plan = PlanRmsNorm(args);
    return plan ? "accepted" : plan.error().message();
  }
  static RmsNormPlan Plan(const RmsNormArgs& args) {
    auto plan = PlanRmsNorm(args);
    EXPECT_TRUE(plan) << (plan ? "" : plan.error().ToString());
    return plan ? *plan : RmsNormPlan{};
  }
};

TEST_F(RmsNormPlanTest, WrongArgumentsAreNamedWithWhatTheyMustBe) {
  EXPECT_EQ(Refusal(Args(4, 1024)), "accepted");
  RmsNormArgs args = Args(4, 1024);
  args.weight = At(0x100, {1023});
  EXPECT_EQ(Refusal(args),
            "rms_norm: weight is [1023] bf16; it must be [1024], the last size of x");
  args = Args(4, 1024);
  args.weight.dtype = DType::kFloat32;
  EXPECT_EQ(Refusal(args), "rms_norm: weight is [1024] fp32; it must be bf16, as x is");
  args = Args(4, 1024);
  args.weight.stride[0] = 2;
  EXPECT_THAT(Refusal(args), HasSubstr("it must be contiguous"));
  args = Args(4, 1024, DType::kInt32);
  EXPECT_EQ(Refusal(args), "rms_norm: x is [4, 1024] int32; it must be fp32, fp16 or bf16");
  args = Args(4, 1024);
  args.x = At(kAt, {});
  EXPECT_EQ(Refusal(args), "rms_norm: x has 0 sizes; it must have 1 to 4");
  args = Args(4, 1024);
  args.x.stride = {1, 4};
  EXPECT_THAT(Refusal(args), HasSubstr("of stride 1 along its last size"));
  args = Args(4, 1024);
  args.out.shape[0] = 3;
  EXPECT_EQ(Refusal(args), "rms_norm: out is [3, 1024] bf16; it must be [4, 1024], as x is");
  args = Args(4, 1024);
  args.out.stride[0] = 0;
  EXPECT_THAT(Refusal(args), HasSubstr("do not share memory"));
  args = Args(4, 1024);
  args.out = At(kAt + 2, {4, 1024});
  EXPECT_EQ(Refusal(args),
            "rms_norm: out lies over x in part; it must be x itself or other memory");
  args = Args(4, 1024);
  args.eps = -1;
  EXPECT_EQ(Refusal(args), "rms_norm: eps is -1; it must be 0 or more");
  args.eps = std::nanf("");
  EXPECT_THAT(Refusal(args), HasSubstr("it must be 0 or more"));
  EXPECT_THAT(Refusal(Args(std::int64_t{1} << 31, 16)), HasSubstr("at most 2^31 - 1 rows"));
}

TEST_F(RmsNormPlanTest, TheOutputMayBeOtherColumnsOfTheInputsMatrix) {
  RmsNormArgs args{At(kAt, {2, 3, 64}), At(0x100, {64}), At(kAt + 128, {2, 3, 64}), kEps};
  args.x.stride = args.out.stride = {384, 128, 1};
  EXPECT_EQ(Refusal(args), "accepted");
  args.out.data = reinterpret_cast<void*>(kAt + 126);
  EXPECT_THAT(Refusal(args), HasSubstr("out lies over x in part"));
}

TEST_F(RmsNormPlanTest, WrongArgumentsOfTheSumAreNamed) {
  const RmsNormArgs base = Args(4, 1024);
  AddRmsNormArgs right;
  right.x = base.x;
  right.weight = base.weight;
  right.out = base.out;
  right.residual = right.residual_out = At(std::uintptr_t{2} << 40, {4, 1024});
  const auto refusal = [](const AddRmsNormArgs& args) {
    const auto plan = PlanAddRmsNorm(args);
    return plan ? std::string("accepted") : plan.error().message();
  };
  EXPECT_EQ(refusal(right), "accepted");
  AddRmsNormArgs args = right;
  args.residual = {};
  EXPECT_EQ(refusal(args), "add_rms_norm: residual has 0 sizes; it must have 1 to 4");
  args = right;
  args.residual.dtype = DType::kFloat16;
  EXPECT_THAT(refusal(args), HasSubstr("residual is [4, 1024] fp16; it must be bf16, as x is"));
  args = right;
  args.out = args.residual_out;
  EXPECT_EQ(refusal(args), "add_rms_norm: out lies over residual_out; it must be other memory");
  args = right;
  args.residual_out = At((std::uintptr_t{2} << 40) + 2048, {4, 1024});
  EXPECT_THAT(refusal(args), HasSubstr("residual_out lies over residual in part"));
}

TEST_F(RmsNormPlanTest, WordsOf16BytesAreForRowsThatHaveThem) {
  EXPECT_TRUE(Plan(Args(4, 1024)).wide);
  EXPECT_EQ(Plan(Args(4, 1024)).words, 128U);
  EXPECT_FALSE(Plan(Args(4, 1020)).wide);
  EXPECT_EQ(Plan(Args(4, 1020)).words, 1020U);
  EXPECT_TRUE(Plan(Args(4, 1020, DType::kFloat32)).wide);
  RmsNormArgs args = Args(4, 1024);
  args.x = At(kAt + 2, {4, 1024});
  EXPECT_FALSE(Plan(args).wide);
  args = Args(4, 1024);
  args.x.stride[0] = 1028;
  EXPECT_FALSE(Plan(args).wide);
  args.x.stride[0] = 1032;
  EXPECT_TRUE(Plan(args).wide);
  args.weight = At(0x102, {1024});
  EXPECT_FALSE(Plan(args).wide);
}

// Elements held by a thread; 0 if rows are read twice.
std::uint32_t HeldByThread(RmsNormForm form) {
  switch (form) {
    case RmsNormForm::kOneWord: return 1;
    case RmsNormForm::kTwoWords: return 2;
    case RmsNormForm::kFourWords: return 4;
    case RmsNormForm::kEightElements: return 8;
    default: return 0;
  }
}

// Whatever the size: all words of a row are somebody's, and blocks are as the kernels expect them.
TEST_F(RmsNormPlanTest, EveryConfigurationCoversItsRows) {
  for (const DType dtype : {DType::kBfloat16, DType::kFloat32}) {
    for (const std::int64_t rows : {1, 7, 264, 265, 5000}) {
      for (std::int64_t cols = 1; cols < 40000; cols += 1 + cols / 9) {
        const RmsNormPlan plan = Plan(Args(rows, cols, dtype));
        const std::uint32_t threads = plan.threads_per_row * plan.rows_per_block;
        ASSERT_LE(threads, kRmsNormMaxThreads) << cols;
        ASSERT_EQ(threads % 32, 0U) << cols;
        ASSERT_TRUE(plan.threads_per_row <= 32 || plan.rows_per_block == 1) << cols;
        ASSERT_GE(std::int64_t{plan.blocks} * plan.rows_per_block, rows) << cols;
        ASSERT_LT(std::int64_t{plan.blocks - 1} * plan.rows_per_block, rows) << cols;
        const std::uint32_t held = HeldByThread(plan.form);
        ASSERT_TRUE(held == 0 || held * plan.threads_per_row >= plan.words) << cols;
        ASSERT_EQ(held == 8, !plan.wide && held != 0) << cols;
        ASSERT_TRUE(cols > 4096 || plan.form != RmsNormForm::kTwoPass) << cols;
      }
    }
  }
  EXPECT_EQ(Plan(Args(5000, 8192, DType::kFloat32)).form, RmsNormForm::kFourWords);
  EXPECT_EQ(Plan(Args(5000, 16384)).form, RmsNormForm::kFourWords);
  EXPECT_EQ(Plan(Args(5000, 16392)).form, RmsNormForm::kTwoPass);
  EXPECT_EQ(Plan(Args(5000, 128)).rows_per_block, 16U);
}

}  // namespace
}  // namespace ferry::kernels
