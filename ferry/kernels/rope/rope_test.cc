// Tests of the rotary embedding on CPU, simulated device and GPU.

#include "ferry/kernels/rope/rope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <string>
#include <vector>

#include "ferry/kernels/number.h"
#include "ferry/kernels/rope/rope_plan.h"
#include "ferry/kernels/testing/op_bed.h"

namespace ferry::kernels {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kRopePositions = 300;

struct RopeCase {
  DType dtype = DType::kFloat32;
  std::int64_t tokens = 5;
  std::int64_t q_heads = 4;
  std::int64_t k_heads = 2;  // 0: k is left out
  std::int64_t head_dim = 128;
  std::int64_t rotated = 128;
  TestLayout in = {};
  TestLayout out = {};
  bool in_place = false;
  DType index_dtype = DType::kInt64;
  DType cache_dtype = DType::kFloat32;
  bool is_neox = true;
};

class RopeTensors {
 public:
  explicit RopeTensors(const RopeCase& given)
      : given_(given),
        q_(given.dtype, {given.tokens, given.q_heads, given.head_dim}, given.in),
        k_(given.dtype, {given.tokens, given.k_heads, given.head_dim}, given.in),
        q_out_(given.dtype, {given.tokens, given.q_heads, given.head_dim}, given.out),
        k_out_(given.dtype, {given.tokens, given.k_heads, given.head_dim}, given.out),
        positions_(given.index_dtype, {given.tokens}),
        cache_(given.cache_dtype, {kRopePositions, given.rotated}) {
    cache_.Fill([&](std::int64_t i) {
      const double angle = Angle(i / given_.rotated, i % (given_.rotated / 2));
      return i % given_.rotated < given_.rotated / 2 ? std::cos(angle) : std::sin(angle);
    });
  }

  void FillAnew(std::mt19937_64* random) {
    q_.FillNormally(random);
    k_.FillNormally(random);
    std::uniform_int_distribution<std::int64_t> position(0, kRopePositions - 1);
    positions_.Fill([&](std::int64_t) { return static_cast<double>(position(*random)); });
    q_before_ = q_.Values();
    k_before_ = k_.Values();
    q_out_.Poison();
    k_out_.Poison();
  }
  RopeArgs Args(OpBed* bed) {
    RopeArgs args;
    args.q = bed->View(q_);
    args.q_out = bed->View(given_.in_place ? q_ : q_out_);
    if (given_.k_heads > 0) {
      args.k = bed->View(k_);
      args.k_out = bed->View(given_.in_place ? k_ : k_out_);
    }
    args.positions = bed->View(positions_);
    args.cos_sin_cache = bed->View(cache_);
    args.is_neox = given_.is_neox;
    return args;
  }
  TestTensor& positions() { return positions_; }
  TestTensor& q() { return q_; }
  TestTensor& q_out() { return q_out_; }
  const std::vector<double>& q_before() const { return q_before_; }

  void ExpectRight() {
    ExpectRight(q_before_, given_.in_place ? q_ : q_out_, given_.q_heads, "q");
    if (given_.k_heads > 0) {
      ExpectRight(k_before_, given_.in_place ? k_ : k_out_, given_.k_heads, "k");
    }
    for (const TestTensor* tensor : {&q_, &k_, &q_out_, &k_out_, &positions_, &cache_}) {
      tensor->ExpectGapsUntouched("rope");
    }
  }

 private:
  double Angle(std::int64_t position, std::int64_t pair) const {
    return static_cast<double>(position) *
           std::pow(1e6, -2.0 * static_cast<double>(pair) / static_cast<double>(given_.rotated));
  }

  // The exact turn, or that of a cache which rounds it to fewer bits than results are judged by.
  std::complex<double> Turn(std::int64_t position, std::int64_t pair) const {
    if (given_.cache_dtype == DType::kFloat32) return std::polar(1.0, Angle(position, pair));
    const std::int64_t at = position * given_.rotated + pair;
    return {cache_.Get(at), cache_.Get(at + given_.rotated / 2)};
  }

  // Each pair as a complex number, turned by the angle.
  void ExpectRight(const std::vector<double>& before, const TestTensor& out, std::int64_t heads,
                   const char* what) {
    const auto half = static_cast<std::size_t>(given_.rotated / 2);
    const auto head_dim = static_cast<std::size_t>(given_.head_dim);
    const DType dtype = given_.dtype;
    Elements elements{out.Values(), before, std::vector<double>(before.size())};
    for (std::size_t head = 0; head < before.size(); head += head_dim) {
      const auto token = static_cast<std::int64_t>(head / head_dim) / heads;
      const auto position = static_cast<std::int64_t>(positions_.Get(token));
      for (std::size_t pair = 0; pair < half; ++pair) {
        const std::size_t i = head + (given_.is_neox ? pair : 2 * pair);
        const std::size_t j = given_.is_neox ? i + half : i + 1;
        const auto angle = Angle(position, static_cast<std::int64_t>(pair));
        const std::complex<double> turned = std::complex<double>(before[i], before[j]) *
                                            Turn(position, static_cast<std::int64_t>(pair));
        elements.right[i] = turned.real();
        elements.right[j] = turned.imag();
        const double cos = std::fabs(std::cos(angle));
        const double sin = std::fabs(std::sin(angle));
        elements.terms[i] = std::fabs(before[i]) * cos + std::fabs(before[j]) * sin;
        elements.terms[j] = std::fabs(before[j]) * cos + std::fabs(before[i]) * sin;
      }
    }
    ExpectEachRight(elements, {}, dtype, std::string("rope of ") + what);
  }

  const RopeCase given_;
  TestTensor q_;
  TestTensor k_;
  TestTensor q_out_;
  TestTensor k_out_;
  TestTensor positions_;
  TestTensor cache_;
  std::vector<double> q_before_;
  std::vector<double> k_before_;
};

class RopeTest : public OpTest {
 protected:
  void Expect(const RopeCase& given) {
    RopeTensors tensors(given);
    ExpectRightResults(&tensors, kRopeKernel, RopeCpu);
  }
};

TEST_P(RopeTest, EveryHeadSizeIsRightInEveryFormat) {
  for (const DType dtype : kFloatTypes) {
    for (const std::int64_t head_dim : {2, 6, 16, 64, 80, 128, 256, 514, 1024}) {
      Expect({.dtype = dtype, .head_dim = head_dim, .rotated = head_dim});
    }
  }
}

TEST_P(RopeTest, ManyTokensAndAnyNumberOfHeadsAreRightInPlaceToo) {
  for (const bool in_place : {false, true}) {
    for (const std::int64_t q_heads : {1, 3, 32, 70}) {
      Expect({.dtype = DType::kBfloat16,
              .tokens = 37,
              .q_heads = q_heads,
              .k_heads = (q_heads + 3) / 4,
              .in_place = in_place});
    }
  }
  Expect({.dtype = DType::kFloat16, .k_heads = 0});
  Expect({.dtype = DType::kFloat16, .q_heads = 0, .k_heads = 3});
}

TEST_P(RopeTest, WhatIsNotRotatedIsCopiedOrLeft) {
  for (const DType dtype : kFloatTypes) {
    for (const bool in_place : {false, true}) {
      for (const std::int64_t rotated : {2, 64, 70}) {
        Expect({.dtype = dtype, .head_dim = 96, .rotated = rotated, .in_place = in_place});
      }
    }
  }
}

// The parts of a projection's output, and heads that begin anywhere.
TEST_P(RopeTest, ViewsWithGapsAreReadAndWrittenWhereTheyAre) {
  for (const DType dtype : kFloatTypes) {
    for (const bool in_place : {false, true}) {
      Expect({.dtype = dtype, .in = {.gap = {1024, 0, 0}, .skip = 128}, .in_place = in_place});
      Expect({.dtype = dtype,
              .in = {.gap = {3, 5, 0}, .skip = 1},
              .out = {.gap = {1, 2, 0}, .skip = 3},
              .in_place = in_place});
    }
  }
}

TEST_P(RopeTest, PositionsAndCachesAreReadInEveryTypeThatEnginesKeepThemIn) {
  for (const DType dtype : kFloatTypes) {
    for (const DType index : {DType::kInt32, DType::kInt64}) {
      for (const DType cache : kFloatTypes) {
        for (const std::int64_t head_dim : {6, 64, 80, 128, 256}) {
          Expect({.dtype = dtype,
                  .head_dim = head_dim,
                  .rotated = head_dim,
                  .index_dtype = index,
                  .cache_dtype = cache});
        }
        Expect({.dtype = dtype, .q_heads = 70, .index_dtype = index, .cache_dtype = cache});
      }
    }
  }
}

TEST_P(RopeTest, PairsOfNeighboursAreRightInEveryFormatAndLayout) {
  for (const DType dtype : kFloatTypes) {
    for (const bool in_place : {false, true}) {
      for (const std::int64_t head_dim : {2, 6, 16, 64, 80, 128, 256, 514}) {
        Expect({.dtype = dtype,
                .q_heads = 5,
                .head_dim = head_dim,
                .rotated = head_dim,
                .in_place = in_place,
                .is_neox = false});
      }
      for (const DType cache : kFloatTypes) {
        Expect({.dtype = dtype,
                .head_dim = 96,
                .rotated = 64,
                .in_place = in_place,
                .cache_dtype = cache,
                .is_neox = false});
      }
      Expect({.dtype = dtype,
              .in = {.gap = {3, 5, 0}, .skip = 1},
              .out = {.gap = {1, 2, 0}, .skip = 3},
              .in_place = in_place,
              .is_neox = false});
    }
  }
  RopeTensors replayed({.dtype = DType::kBfloat16, .tokens = 9, .is_neox = false});
  ExpectRightReplays(&replayed, kRopeKernel, RopeCpu);
}

TEST_P(RopeTest, EmptyTensorsAreLeftAlone) { Expect({.tokens = 0}); }

TEST_P(RopeTest, ATokenBeyondTheCacheIsAnErrorOnTheCpuAndSkippedOnGpus) {
  for (const std::int64_t beyond : {std::int64_t{-1}, kRopePositions, std::int64_t{1} << 40}) {
    RopeTensors tensors({.dtype = DType::kBfloat16});
    tensors.FillAnew(&random());
    tensors.positions().Set(2, static_cast<double>(beyond));
    OpBed bed = Bed();
    const Status ran = bed.Run(kRopeKernel, RopeCpu, tensors.Args(&bed));
    if (OnGpu()) {
      ASSERT_TRUE(ran) << ran.error().ToString();
      for (std::int64_t i = 0; i < 4 * 128; ++i) {
        ASSERT_TRUE(std::isnan(tensors.q_out().Get(2 * 4 * 128 + i)));  // still poison
        ASSERT_FALSE(std::isnan(tensors.q_out().Get(3 * 4 * 128 + i)));
      }
      continue;
    }
    ASSERT_FALSE(ran);
    if (!OnCpu()) return;  // the simulated device is lost, as after an illegal access
    EXPECT_EQ(ran.error().message(),
              "rope: positions[2] is " + std::to_string(beyond) + "; cos_sin_cache has 0 to 299");
    EXPECT_TRUE(std::isnan(tensors.q_out().Get(0)));
  }
}

TEST_P(RopeTest, ACapturedCallWorksOnWhatIsThereWhenItIsReplayed) {
  RopeTensors tensors({.dtype = DType::kBfloat16, .tokens = 9, .q_heads = 16, .k_heads = 8});
  ExpectRightReplays(&tensors, kRopeKernel, RopeCpu);
}

FERRY_INSTANTIATE_OP_TEST(RopeTest);

// ---- arguments and choices, without memory that is touched ------------------------------------

class RopePlanTest : public ::testing::Test {
 protected:
  static RopeArgs Args() {
    RopeArgs args;
    args.q = args.q_out = TensorAt(1, {7, 16, 128});
    args.k = args.k_out = TensorAt(2, {7, 8, 128});
    args.positions = TensorAt(3, {7}, DType::kInt64);
    args.cos_sin_cache = TensorAt(4, {4096, 128}, DType::kFloat32);
    return args;
  }
  static std::string Refusal(const RopeArgs& args) {
    const auto plan = PlanRope(args);
    return plan ? "accepted" : plan.error().message();
  }
};

TEST_F(RopePlanTest, WrongHeadsAreNamedWithWhatTheyMustBe) {
  EXPECT_EQ(Refusal(Args()), "accepted");
  RopeArgs args = Args();
  args.q = TensorAt(1, {7, 2048});
  EXPECT_EQ(Refusal(args), "rope: q has 2 sizes; it must have 3");
  args = Args();
  args.k = TensorAt(2, {6, 8, 128});
  EXPECT_EQ(Refusal(args),
            "rope: k is [6, 8, 128] bf16; it must be [7, 8, 128], with the tokens and the head "
            "size of q");
  args = Args();
  args.k.dtype = DType::kFloat16;
  EXPECT_EQ(Refusal(args), "rope: k is [7, 8, 128] fp16; it must be bf16, as q is");
  args = Args();
  args.k = {};
  EXPECT_EQ(Refusal(args), "rope: k_out is [7, 8, 128] bf16; it must be left out, as k is");
  args.k_out = {};
  EXPECT_EQ(Refusal(args), "accepted");
  args = Args();
  args.q_out = TensorAt(5, {7, 16, 64});
  EXPECT_EQ(Refusal(args), "rope: q_out is [7, 16, 64] bf16; it must be [7, 16, 128], as q is");
  args = Args();
  args.k_out = args.q;
  args.k_out.shape[1] = 8;
  EXPECT_EQ(Refusal(args), "rope: k_out lies over q; it must be other memory");
  args = Args();
  args.q.stride[2] = 2;
  EXPECT_THAT(Refusal(args), HasSubstr("of stride 1 along its last size"));
}

TEST_F(RopePlanTest, WrongPositionsAndCachesAreNamedWithWhatTheyMustBe) {
  RopeArgs args = Args();
  args.positions.dtype = DType::kInt32;
  EXPECT_EQ(Refusal(args), "accepted");
  args.positions.dtype = DType::kFloat32;
  EXPECT_EQ(Refusal(args), "rope: positions is [7] fp32; it must be int32 or int64");
  args.positions = TensorAt(3, {8}, DType::kInt64);
  EXPECT_EQ(Refusal(args), "rope: positions is [8] int64; it must be [7], one for each token of q");
  args = Args();
  args.cos_sin_cache.dtype = DType::kFloat8E4m3;
  EXPECT_EQ(Refusal(args),
            "rope: cos_sin_cache is [4096, 128] e4m3; it must be fp32, fp16 or bf16");
  for (const std::int64_t rotated : {0, 63, 130}) {
    args.cos_sin_cache = TensorAt(4, {4096, rotated}, DType::kFloat32);
    EXPECT_THAT(Refusal(args), HasSubstr("it must be of an even last size from 2"));
  }
}

TEST_F(RopePlanTest, PartsOfOneProjectionAreRotatedWhereTheyLie) {
  RopeArgs args = Args();
  args.q.stride[0] = args.k.stride[0] = 32 * 128;
  args.k.data = static_cast<std::byte*>(args.q.data) + 16 * 128 * 2;
  args.q_out = args.q;
  args.k_out = args.k;
  EXPECT_EQ(Refusal(args), "accepted");
  EXPECT_TRUE(PlanRope(args)->wide);
  args.q.stride[0] = args.k.stride[0] = args.q_out.stride[0] = args.k_out.stride[0] = 32 * 128 + 1;
  EXPECT_FALSE(PlanRope(args)->wide);
}

TEST_F(RopePlanTest, BlocksAreOfOneTokenAndNotTooLarge) {
  for (const std::int64_t heads : {1, 16, 64, 1000}) {
    for (const std::int64_t half : {1, 8, 60, 64, 512, 4096}) {
      RopeArgs args = Args();
      args.q = args.q_out = TensorAt(1, {7, heads, 2 * half});
      args.k = args.k_out = {};
      args.cos_sin_cache = TensorAt(4, {4096, 2 * half}, DType::kFloat32);
      const RopePlan plan = *PlanRope(args);
      EXPECT_EQ(plan.wide, half % 8 == 0);
      EXPECT_GE(plan.threads_x, 1U);
      EXPECT_GE(plan.threads_y, 1U);
      EXPECT_LE(plan.threads_x * plan.threads_y,
                plan.form == RopeForm::kNumbers ? kRopeMaxThreads : kRopeMaxWordThreads);
      EXPECT_FALSE(plan.copies_rest);
    }
  }
}

}  // namespace
}  // namespace ferry::kernels
