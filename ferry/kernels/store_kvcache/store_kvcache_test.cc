// Tests of the store to a paged cache on CPU, simulated device and GPU.

#include "ferry/kernels/store_kvcache/store_kvcache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "ferry/kernels/number.h"
#include "ferry/kernels/store_kvcache/store_kvcache_plan.h"
#include "ferry/kernels/testing/op_bed.h"

namespace ferry::kernels {
namespace {

using ::testing::HasSubstr;

struct StoreCase {
  DType dtype = DType::kBfloat16;
  DType cache_dtype = DType::kBfloat16;
  std::int64_t tokens = 23;
  std::int64_t heads = 2;
  std::int64_t head_dim = 64;
  TestLayout in = {};
  TestLayout cache = {};
  std::int64_t block = 16;
  float k_scale = 1;
  float v_scale = 1;
  DType slot_dtype = DType::kInt32;
};

constexpr std::int64_t kStoreBlocks = 5;

class StoreTensors {
 public:
  explicit StoreTensors(const StoreCase& given)
      : given_(given),
        k_(given.dtype, {given.tokens, given.heads, given.head_dim}, given.in),
        v_(given.dtype, {given.tokens, given.heads, given.head_dim}, given.in),
        k_cache_(given.cache_dtype, {kStoreBlocks, given.block, given.heads, given.head_dim},
                 given.cache),
        v_cache_(given.cache_dtype, {kStoreBlocks, given.block, given.heads, given.head_dim},
                 given.cache),
        slots_(given.slot_dtype, {given.tokens}) {}

  // Slots in any order, every fourth token none; caches with numbers that must stay.
  void FillAnew(std::mt19937_64* random) {
    k_.FillNormally(random, 0, 40);
    v_.FillNormally(random, 1, 400);
    std::vector<std::int32_t> free(static_cast<std::size_t>(kStoreBlocks * given_.block));
    std::iota(free.begin(), free.end(), 0);
    std::shuffle(free.begin(), free.end(), *random);
    slots_.Fill([&](std::int64_t i) {
      return i % 4 == 3 ? -1 - static_cast<double>(i) : free[static_cast<std::size_t>(i)];
    });
    for (TestTensor* cache : {&k_cache_, &v_cache_}) {
      cache->Fill([](std::int64_t i) { return static_cast<double>(i % 13) - 6; });
    }
    k_before_ = k_cache_.Values();
    v_before_ = v_cache_.Values();
  }
  StoreKvCacheArgs Args(OpBed* bed) {
    return {bed->View(k_),     bed->View(v_),  bed->View(k_cache_), bed->View(v_cache_),
            bed->View(slots_), given_.k_scale, given_.v_scale};
  }
  TestTensor& k() { return k_; }
  TestTensor& slots() { return slots_; }

  // But for the token `without`, which was not stored.
  void ExpectRight(std::int64_t without = -1) {
    ExpectRight(k_, k_cache_, k_before_, given_.k_scale, without);
    ExpectRight(v_, v_cache_, v_before_, given_.v_scale, without);
    for (const TestTensor* tensor : {&k_, &v_, &k_cache_, &v_cache_, &slots_}) {
      tensor->ExpectGapsUntouched("store_kvcache");
    }
  }

 private:
  void ExpectRight(const TestTensor& tokens, const TestTensor& cache, std::vector<double> expected,
                   float scale, std::int64_t without) {
    const std::int64_t cols = given_.heads * given_.head_dim;
    const float inverse = 1 / scale;
    for (std::int64_t token = 0; token < given_.tokens; ++token) {
      const auto slot = static_cast<std::int64_t>(slots_.Get(token));
      if (slot < 0 || token == without) continue;
      for (std::int64_t i = 0; i < cols; ++i) {
        const auto value = static_cast<float>(tokens.Get(token * cols + i));
        expected[static_cast<std::size_t>(slot * cols + i)] =
            given_.cache_dtype == DType::kFloat8E4m3 ? FromE4m3(ToE4m3(value * inverse)) : value;
      }
    }
    const std::vector<double> got = cache.Values();
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], expected[i]) << "element " << i << " of " << ToString(cache.view());
    }
  }

  const StoreCase given_;
  TestTensor k_;
  TestTensor v_;
  TestTensor k_cache_;
  TestTensor v_cache_;
  TestTensor slots_;
  std::vector<double> k_before_;
  std::vector<double> v_before_;
};

class StoreKvCacheTest : public OpTest {
 protected:
  void Expect(const StoreCase& given) {
    StoreTensors tensors(given);
    ExpectRightResults(&tensors, kStoreKvCacheKernel, StoreKvCacheCpu);
  }
};

// The product of heads and head size is any number, not only a power of two.
TEST_P(StoreKvCacheTest, EverySizeOfATokenIsStoredInEveryFormat) {
  for (const DType dtype : kFloatTypes) {
    for (const DType cache : {dtype, DType::kFloat8E4m3}) {
      for (const std::int64_t head_dim : {1, 7, 64, 80, 100, 128, 1000}) {
        Expect({.dtype = dtype,
                .cache_dtype = cache,
                .heads = 3,
                .head_dim = head_dim,
                .k_scale = 0.5F,
                .v_scale = 1.7F});
      }
    }
  }
}

TEST_P(StoreKvCacheTest, ManyTokensAndOddBlocksAreRight) {
  Expect({.tokens = 1000, .heads = 1, .head_dim = 8, .block = 256});
  Expect({.tokens = 77, .heads = 8, .head_dim = 128, .block = 17});
  Expect({.tokens = 5, .heads = 2, .head_dim = 64, .block = 1});
}

// Tokens as parts of a projection's output; caches as views of one tensor of all layers.
TEST_P(StoreKvCacheTest, ViewsWithGapsAreReadAndWrittenWhereTheyAre) {
  for (const DType dtype : kFloatTypes) {
    for (const DType cache : {dtype, DType::kFloat8E4m3}) {
      Expect({.dtype = dtype,
              .cache_dtype = cache,
              .in = {.gap = {1024, 0, 0}, .skip = 64},
              .cache = {.gap = {4096, 128, 0, 0}, .skip = 32}});
      Expect({.dtype = dtype,
              .cache_dtype = cache,
              .in = {.gap = {3, 0, 0}, .skip = 1},
              .cache = {.gap = {5, 7, 0, 0}, .skip = 3}});
      Expect({.dtype = dtype, .cache_dtype = cache, .heads = 3, .cache = {.heads_first = true}});
      Expect({.dtype = dtype,
              .cache_dtype = cache,
              .head_dim = 33,
              .cache = {.gap = {5, 7, 2, 0}, .skip = 3, .heads_first = true},
              .block = 5});
    }
  }
}

TEST_P(StoreKvCacheTest, WhatE4m3CannotHoldBecomesItsGreatestNumber) {
  StoreTensors tensors({.dtype = DType::kFloat32, .cache_dtype = DType::kFloat8E4m3});
  tensors.FillAnew(&random());
  const std::vector<double> values = {
      1e30, -1e30, 449, -463.9, 500, 1e-30, -0.0009765625, std::numeric_limits<double>::infinity()};
  tensors.k().Fill([&](std::int64_t i) { return values[static_cast<std::size_t>(i) % 8]; });
  OpBed bed = Bed();
  const Status ran = bed.Run(kStoreKvCacheKernel, StoreKvCacheCpu, tensors.Args(&bed));
  ASSERT_TRUE(ran) << ran.error().ToString();
  tensors.ExpectRight();
}

TEST_P(StoreKvCacheTest, SlotsOfBothIntegerTypesAreRight) {
  for (const DType slot : {DType::kInt32, DType::kInt64}) {
    for (const std::int64_t head_dim : {7, 64}) {
      Expect({.head_dim = head_dim, .slot_dtype = slot});
    }
  }
}

TEST_P(StoreKvCacheTest, RowsOfAProjectionAreStoredAsTheHeadsOfTheCaches) {
  StoreTensors tensors({.in = {.gap = {1024, 0, 0}, .skip = 64}});
  tensors.FillAnew(&random());
  OpBed bed = Bed();
  StoreKvCacheArgs args = tensors.Args(&bed);
  for (Tensor* rows : {&args.k, &args.v}) {
    rows->rank = 2;
    rows->shape[1] *= rows->shape[2];
    rows->stride[1] = 1;
  }
  const Status ran = bed.Run(kStoreKvCacheKernel, StoreKvCacheCpu, args);
  ASSERT_TRUE(ran) << ran.error().ToString();
  tensors.ExpectRight();
}

TEST_P(StoreKvCacheTest, ASlotBeyondInt32IsNotTakenForASmallOne) {
  StoreTensors tensors({.slot_dtype = DType::kInt64});
  tensors.FillAnew(&random());
  tensors.slots().Set(2, 4294967296.0 + 3);
  OpBed bed = Bed();
  const Status ran = bed.Run(kStoreKvCacheKernel, StoreKvCacheCpu, tensors.Args(&bed));
  if (OnGpu()) {
    ASSERT_TRUE(ran) << ran.error().ToString();
    tensors.ExpectRight(2);
    return;
  }
  ASSERT_FALSE(ran);
  if (OnCpu()) {
    EXPECT_THAT(ran.error().message(), HasSubstr("slots[2] is 4294967299"));
  }
}

TEST_P(StoreKvCacheTest, EmptyTensorsAreLeftAlone) {
  Expect({.tokens = 0});
  Expect({.heads = 0});
}

TEST_P(StoreKvCacheTest, ASlotBeyondTheCachesIsAnErrorOnTheCpuAndSkippedOnGpus) {
  StoreTensors tensors({});
  tensors.FillAnew(&random());
  tensors.slots().Set(2, 80);
  OpBed bed = Bed();
  const Status ran = bed.Run(kStoreKvCacheKernel, StoreKvCacheCpu, tensors.Args(&bed));
  if (OnGpu()) {
    ASSERT_TRUE(ran) << ran.error().ToString();
    tensors.ExpectRight(2);
    return;
  }
  ASSERT_FALSE(ran);
  if (!OnCpu()) return;  // the simulated device is lost, as after an illegal access
  EXPECT_EQ(ran.error().message(),
            "store_kvcache: slots[2] is 80; the caches have 80 slots, and a token that is not to "
            "be stored has a negative one");
}

TEST_P(StoreKvCacheTest, ACapturedCallWorksOnWhatIsThereWhenItIsReplayed) {
  StoreTensors tensors({.tokens = 64, .heads = 8, .head_dim = 128});
  ExpectRightReplays(&tensors, kStoreKvCacheKernel, StoreKvCacheCpu);
}

FERRY_INSTANTIATE_OP_TEST(StoreKvCacheTest);

// ---- arguments and choices, without memory that is touched ------------------------------------

class StoreKvCachePlanTest : public ::testing::Test {
 protected:
  static StoreKvCacheArgs Args() {
    return {TensorAt(1, {7, 8, 128}), TensorAt(2, {7, 8, 128}), TensorAt(3, {40, 256, 8, 128}),
            TensorAt(4, {40, 256, 8, 128}), TensorAt(5, {7}, DType::kInt32)};
  }
  static std::string Refusal(const StoreKvCacheArgs& args) {
    const auto plan = PlanStoreKvCache(args);
    return plan ? "accepted" : plan.error().message();
  }
};

TEST_F(StoreKvCachePlanTest, WrongArgumentsAreNamedWithWhatTheyMustBe) {
  EXPECT_EQ(Refusal(Args()), "accepted");
  StoreKvCacheArgs args = Args();
  args.v = TensorAt(2, {7, 8, 64});
  EXPECT_EQ(Refusal(args), "store_kvcache: v is [7, 8, 64] bf16; it must be [7, 8, 128], as k is");
  args = Args();
  args.k.stride[1] = 256;
  EXPECT_THAT(Refusal(args), HasSubstr("it must be contiguous along its last two sizes"));
  args = Args();
  args.k_cache = TensorAt(3, {40, 256, 8, 64});
  EXPECT_EQ(Refusal(args),
            "store_kvcache: k_cache is [40, 256, 8, 64] bf16; it must be [40, 256, 8, 128], with "
            "the heads and the head size of k");
  args = Args();
  args.k_cache.dtype = DType::kFloat16;
  EXPECT_THAT(Refusal(args), HasSubstr("k_cache is [40, 256, 8, 128] fp16; it must be bf16 or "
                                       "e4m3"));
  args = Args();
  args.v_cache.dtype = DType::kFloat8E4m3;
  EXPECT_THAT(Refusal(args), HasSubstr("v_cache is [40, 256, 8, 128] e4m3; it must be bf16, as "
                                       "k_cache is"));
  args = Args();
  args.k = TensorAt(1, {7, 8 * 128});
  args.v = TensorAt(2, {7, 8 * 128});
  EXPECT_EQ(Refusal(args), "accepted");
  args.v = TensorAt(2, {7, 8 * 128 + 1});
  EXPECT_EQ(Refusal(args),
            "store_kvcache: v is [7, 1025] bf16; it must be [tokens, heads, head_dim], or a row of "
            "as many elements as k_cache's");
  args = Args();
  args.slots.dtype = DType::kInt64;
  EXPECT_EQ(Refusal(args), "accepted");
  args.slots.dtype = DType::kFloat32;
  EXPECT_EQ(Refusal(args), "store_kvcache: slots is [7] fp32; it must be int32 or int64");
  args = Args();
  args.slots.shape[0] = 6;
  EXPECT_EQ(Refusal(args), "store_kvcache: slots is [6] int32; it must be [7], one for each token");
  args = Args();
  args.v_cache = args.k_cache;
  EXPECT_EQ(Refusal(args), "store_kvcache: v_cache lies over k_cache; it must be other memory");
  args = Args();
  args.k.data = args.k_cache.data;
  EXPECT_EQ(Refusal(args), "store_kvcache: k_cache lies over k; it must be other memory");
  args = Args();
  args.v_scale = 0;
  EXPECT_EQ(Refusal(args), "store_kvcache: v_scale is 0; it must be above 0");
  args.v_scale = 1e-39F;
  EXPECT_THAT(Refusal(args), HasSubstr("it must be so great that 1 by it is finite"));
  args = Args();
  args.k_cache = args.v_cache = {};
  EXPECT_EQ(Refusal(args), "store_kvcache: k_cache has 0 sizes; it must have 4");
}

TEST_F(StoreKvCachePlanTest, BothCachesMayLieInOneTensor) {
  StoreKvCacheArgs args = Args();
  constexpr std::int64_t kToken = std::int64_t{8} * 128;
  args.k_cache.stride = args.v_cache.stride = {256 * 2 * kToken, 2 * kToken, 128, 1};
  args.v_cache.data = static_cast<std::byte*>(args.k_cache.data) + kToken * 2;
  EXPECT_EQ(Refusal(args), "accepted");
  EXPECT_TRUE(PlanStoreKvCache(args)->wide);
  args.v_cache.data = static_cast<std::byte*>(args.k_cache.data) + kToken * 2 - 2;
  EXPECT_EQ(Refusal(args), "store_kvcache: v_cache lies over k_cache; it must be other memory");
  args.k_cache.stride[1] = args.v_cache.stride[1] = kToken;
  args.v_cache.data = static_cast<std::byte*>(args.k_cache.data) + 256 * kToken * 2;
  EXPECT_EQ(Refusal(args), "accepted");
}

TEST_F(StoreKvCachePlanTest, WordsOf16BytesAreForTokensThatHaveThemOnBothSides) {
  EXPECT_TRUE(PlanStoreKvCache(Args())->wide);
  StoreKvCacheArgs args = Args();
  args.k_cache.dtype = args.v_cache.dtype = DType::kFloat8E4m3;
  args.k_cache.data = static_cast<std::byte*>(args.k_cache.data) + 8;
  EXPECT_TRUE(PlanStoreKvCache(args)->wide);
  args.k_cache.data = static_cast<std::byte*>(args.k_cache.data) + 4;
  EXPECT_FALSE(PlanStoreKvCache(args)->wide);
  args = Args();
  args.v.stride[0] += 4;
  EXPECT_FALSE(PlanStoreKvCache(args)->wide);
}

}  // namespace
}  // namespace ferry::kernels
