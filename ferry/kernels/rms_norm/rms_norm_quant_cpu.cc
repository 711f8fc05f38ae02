// CPU form of the quantised RMS norm.

#include <algorithm>
#include <cmath>
#include <vector>

#include "ferry/kernels/number.h"
#include "ferry/kernels/rms_norm/rms_norm_quant.h"
#include "ferry/kernels/rms_norm/rms_norm_quant_plan.h"

namespace ferry::kernels {
namespace {

// The values that RmsNorm() and AddRmsNorm() write for a row, and the row's sum to the residual.
void NormQuantRow(const RmsNormPlan& plan, std::uint32_t r, std::vector<float>* row) {
  const auto cols = static_cast<std::int64_t>(row->size());
  const std::int64_t x = RowOffset(plan.sizes, plan.x_strides, r);
  const std::int64_t residual = RowOffset(plan.sizes, plan.residual_strides, r);
  double squares = 0;
  for (std::int64_t c = 0; c < cols; ++c) {
    float value = ReadFloat(plan.x, plan.dtype, x + c);
    if (plan.residual != nullptr) {
      value += ReadFloat(plan.residual, plan.dtype, residual + c);
      WriteFloat(plan.residual_out, plan.dtype, residual + c, value);
    }
    (*row)[static_cast<std::size_t>(c)] = value;
    squares += double{value} * value;
  }
  const auto scale =
      static_cast<float>(1 / std::sqrt(squares / static_cast<double>(cols) + double{plan.eps}));
  for (std::int64_t c = 0; c < cols; ++c) {
    float& value = (*row)[static_cast<std::size_t>(c)];
    value = RoundTo(plan.dtype,
                    RoundTo(plan.dtype, value * scale) * ReadFloat(plan.weight, plan.dtype, c));
  }
}

}  // namespace

Status RmsNormQuantCpu(const RmsNormQuantArgs& args) {
  FERRY_TRY_ASSIGN(const RmsNormQuantPlan plan, PlanRmsNormQuant(args));
  std::vector<float> row(static_cast<std::size_t>(args.input.last()));
  for (std::uint32_t r = 0; r < plan.norm.rows; ++r) {
    NormQuantRow(plan.norm, r, &row);
    QuantiseRow(plan.scale, r, row, plan.out, RowOffset(plan.norm.sizes, plan.out_strides, r));
  }
  return Ok();
}

}  // namespace ferry::kernels
