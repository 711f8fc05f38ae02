// CPU form of the merge of attention states, in double, rounded once.

#include <algorithm>
#include <cmath>
#include <limits>

#include "ferry/kernels/attention_merge/attention_merge.h"
#include "ferry/kernels/attention_merge/attention_merge_plan.h"
#include "ferry/kernels/number.h"

namespace ferry::kernels {
namespace {

constexpr double kNoKeys = -std::numeric_limits<double>::infinity();

// An lse of inf says that there are no keys, as -inf does.
double MergeLseAt(const float* lse) { return std::isinf(*lse) ? kNoKeys : double{*lse}; }

// 0 for a part without keys, also where there are none in either.
double WeightOf(double lse, double largest) { return lse == kNoKeys ? 0 : std::exp(lse - largest); }

// A part of weight 0 counts for nothing even where it holds NaN.
double Weighted(double weight, const void* out, DType dtype, std::int64_t at) {
  return weight == 0 ? 0 : weight * ReadFloat(out, dtype, at);
}

}  // namespace

Status AttentionMergeCpu(const AttentionMergeArgs& args) {
  FERRY_TRY_ASSIGN(const AttentionMergePlan plan, PlanAttentionMerge(args));
  for (std::uint32_t row = 0; row < plan.tiles.rows; ++row) {
    const std::int64_t query = row / plan.heads;
    const std::int64_t head = row % plan.heads;
    const auto lse_of = [&](const MergeLse& lse) {
      return lse.data + query * lse.query + head * lse.head;
    };
    const double lse_a = MergeLseAt(lse_of(plan.lse_a));
    const double lse_b = MergeLseAt(lse_of(plan.lse_b));
    const double largest = std::max(lse_a, lse_b);
    const double weight_a = WeightOf(lse_a, largest);
    const double weight_b = WeightOf(lse_b, largest);
    const double sum = weight_a + weight_b;
    const std::int64_t a = RowOffset(plan.sizes, plan.a_strides, row);
    const std::int64_t b = RowOffset(plan.sizes, plan.b_strides, row);
    const std::int64_t out = RowOffset(plan.sizes, plan.out_strides, row);
    for (std::int64_t i = 0; i < args.out.last(); ++i) {
      const double value = Weighted(weight_a, plan.out_a, plan.dtype, a + i) +
                           Weighted(weight_b, plan.out_b, plan.dtype, b + i);
      WriteFloat(plan.out, plan.dtype, out + i, static_cast<float>(sum == 0 ? 0 : value / sum));
    }
    if (plan.lse.data != nullptr) {
      *lse_of(plan.lse) = static_cast<float>(sum == 0 ? largest : largest + std::log(sum));
    }
  }
  return Ok();
}

}  // namespace ferry::kernels
