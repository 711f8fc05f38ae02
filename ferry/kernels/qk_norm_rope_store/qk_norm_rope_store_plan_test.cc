// Tests of the fused op's argument checks and plans, without memory that is touched.

#include "ferry/kernels/qk_norm_rope_store/qk_norm_rope_store_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "ferry/kernels/testing/op_bed.h"

namespace ferry::kernels {
namespace {

using ::testing::HasSubstr;

class QkPlanTest : public ::testing::Test {
 protected:
  static QkNormRopeStoreArgs Args(std::int64_t q_heads = 32, std::int64_t head_dim = 128) {
    QkNormRopeStoreArgs args;
    args.qkv = TensorAt(1, {7, (q_heads + 16) * head_dim});
    args.q_heads = q_heads;
    args.kv_heads = 8;
    args.q_weight = TensorAt(2, {head_dim});
    args.k_weight = TensorAt(3, {head_dim});
    args.positions = TensorAt(4, {7}, DType::kInt64);
    args.cos_sin_cache = TensorAt(5, {4096, head_dim}, DType::kFloat32);
    args.q_out = TensorAt(6, {7, q_heads, head_dim});
    args.k_out = TensorAt(7, {7, 8, head_dim});
    args.k_cache = TensorAt(8, {40, 256, 8, head_dim});
    args.v_cache = TensorAt(10, {40, 256, 8, head_dim});
    args.slots = TensorAt(12, {7}, DType::kInt32);
    return args;
  }
  static std::string Refusal(const QkNormRopeStoreArgs& args) {
    const auto plan = PlanQkNormRopeStore(args);
    return plan ? "accepted" : plan.error().message();
  }
};

TEST_F(QkPlanTest, WrongInputsAreNamedWithWhatTheyMustBe) {
  EXPECT_EQ(Refusal(Args()), "accepted");
  QkNormRopeStoreArgs args = Args();
  args.q_heads = 31;
  EXPECT_EQ(Refusal(args),
            "qk_norm_rope_store: qkv is [7, 6144] bf16; it must be [7, 6016], the heads of q, k "
            "and v");
  args = Args();
  args.kv_heads = -1;
  EXPECT_THAT(Refusal(args), HasSubstr("a number of heads is -1; it must be from 0 to 2^20"));
  args = Args();
  args.k_weight = TensorAt(3, {64});
  EXPECT_THAT(Refusal(args), HasSubstr("k_weight is [64] bf16; it must be [128], as q_weight is"));
  args = Args();
  args.q_weight.dtype = DType::kFloat32;
  EXPECT_THAT(Refusal(args), HasSubstr("q_weight is [128] fp32; it must be bf16, as qkv is"));
  args = Args();
  args.positions = TensorAt(4, {7}, DType::kFloat32);
  EXPECT_THAT(Refusal(args), HasSubstr("positions is [7] fp32; it must be int32 or int64"));
  args = Args();
  args.cos_sin_cache = TensorAt(5, {4096, 130}, DType::kFloat32);
  EXPECT_THAT(Refusal(args), HasSubstr("of an even last size from 2 to that of a head"));
  args = Args();
  args.eps = -1;
  EXPECT_THAT(Refusal(args), HasSubstr("eps is -1; it must be 0 or more"));
}

TEST_F(QkPlanTest, WrongOutputsAreNamedWithWhatTheyMustBe) {
  QkNormRopeStoreArgs args = Args();
  args.q_out = TensorAt(6, {7, 32, 64});
  EXPECT_THAT(Refusal(args), HasSubstr("it must be [7, 32, 128], as q of qkv is"));
  args = Args();
  args.q_out = {};
  EXPECT_EQ(Refusal(args), "qk_norm_rope_store: q_out has 0 sizes; it must have 3");
  args = Args();
  args.k_out.data = args.q_out.data;
  EXPECT_THAT(Refusal(args), HasSubstr("k_out lies over q_out"));
  args = Args();
  args.q_out.data = args.qkv.data;
  EXPECT_THAT(Refusal(args), HasSubstr("q_out lies over q of qkv in part"));
  args = Args();
  args.k_cache.data = args.qkv.data;
  EXPECT_THAT(Refusal(args), HasSubstr("k_cache lies over qkv"));
  args = Args();
  args.slots.data = args.q_out.data;
  EXPECT_THAT(Refusal(args), HasSubstr("q_out lies over slots"));
  args.slots.data = args.k_out.data;
  EXPECT_THAT(Refusal(args), HasSubstr("k_out lies over slots"));
  for (Tensor QkNormRopeStoreArgs::*read :
       {&QkNormRopeStoreArgs::q_weight, &QkNormRopeStoreArgs::k_weight,
        &QkNormRopeStoreArgs::positions, &QkNormRopeStoreArgs::cos_sin_cache}) {
    for (Tensor QkNormRopeStoreArgs::*written :
         {&QkNormRopeStoreArgs::q_out, &QkNormRopeStoreArgs::k_out, &QkNormRopeStoreArgs::k_cache,
          &QkNormRopeStoreArgs::v_cache}) {
      args = Args();
      (args.*read).data = (args.*written).data;
      EXPECT_THAT(Refusal(args), HasSubstr("it must be other memory"));
    }
  }
  args = Args();
  args.slots = {};
  EXPECT_THAT(Refusal(args), HasSubstr("slots has 0 sizes; it must have 1"));
  args.k_cache = args.v_cache = {};
  EXPECT_EQ(Refusal(args), "accepted");
  args = Args();
  args.k_scale = -1;
  EXPECT_THAT(Refusal(args), HasSubstr("k_scale is -1; it must be above 0"));
}

TEST_F(QkPlanTest, HeadsAreDealtToWholeWarps) {
  for (const std::int64_t q_heads : {0, 1, 16, 32, 64}) {
    for (const std::int64_t head_dim : {16, 32, 80, 96, 128, 256, 512}) {
      const QkNormRopeStorePlan plan = *PlanQkNormRopeStore(Args(q_heads, head_dim));
      EXPECT_NE(plan.words, 0U) << head_dim;
      EXPECT_GE(plan.threads_x * 8, static_cast<std::uint32_t>(head_dim / 2));
      EXPECT_LE(plan.threads_x, 32U);
      EXPECT_EQ(plan.threads_x * plan.threads_y % 32, 0U);
      EXPECT_LE(plan.threads_x * plan.threads_y, kQkMaxThreads);
      EXPECT_GT(plan.threads_y, 0U);
    }
  }
  EXPECT_EQ(PlanQkNormRopeStore(Args())->threads_x, 8U);
  EXPECT_EQ(PlanQkNormRopeStore(Args())->threads_y, 24U);
}

TEST_F(QkPlanTest, HeadsThatAreNoWholeWordsAreDoneByElement) {
  EXPECT_EQ(PlanQkNormRopeStore(Args(32, 120))->words, 0U);
  EXPECT_EQ(PlanQkNormRopeStore(Args(32, 1024))->words, 0U);  // more than a warp has
  QkNormRopeStoreArgs args = Args();
  args.cos_sin_cache = TensorAt(5, {4096, 64}, DType::kFloat32);
  EXPECT_EQ(PlanQkNormRopeStore(args)->words, 0U);
  args = Args();
  args.v_cache.data = static_cast<std::byte*>(args.v_cache.data) + 2;
  EXPECT_EQ(PlanQkNormRopeStore(args)->words, 0U);
  args = Args();
  args.qkv.stride[0] += 4;
  EXPECT_EQ(PlanQkNormRopeStore(args)->words, 0U);
  EXPECT_EQ(PlanQkNormRopeStore(args)->threads_x, 32U);
}

}  // namespace
}  // namespace ferry::kernels
