// CPU form of RMS norm.

#include <cmath>
#include <vector>

#include "ferry/kernels/number.h"
#include "ferry/kernels/rms_norm/rms_norm.h"
#include "ferry/kernels/rms_norm/rms_norm_plan.h"

namespace ferry::kernels {
namespace {

// The plan's rows, as they are described; its form is for GPUs.
void NormRows(const RmsNormPlan& plan, std::int64_t cols) {
  const DType dtype = plan.dtype;
  std::vector<float> row(static_cast<std::size_t>(cols));
  for (std::uint32_t r = 0; r < plan.rows; ++r) {
    const std::int64_t x = RowOffset(plan.sizes, plan.x_strides, r);
    const std::int64_t residual = RowOffset(plan.sizes, plan.residual_strides, r);
    const std::int64_t residual_out = RowOffset(plan.sizes, plan.residual_out_strides, r);
    const std::int64_t out = RowOffset(plan.sizes, plan.out_strides, r);
    double squares = 0;
    for (std::int64_t c = 0; c < cols; ++c) {
      float value = ReadFloat(plan.x, dtype, x + c);
      if (plan.residual != nullptr) {
        value += ReadFloat(plan.residual, dtype, residual + c);
        WriteFloat(plan.residual_out, dtype, residual_out + c, value);
      }
      row[static_cast<std::size_t>(c)] = value;
      squares += double{value} * value;
    }
    const auto scale =
        static_cast<float>(1 / std::sqrt(squares / static_cast<double>(cols) + double{plan.eps}));
    for (std::int64_t c = 0; c < cols; ++c) {
      const float normalised = RoundTo(dtype, row[static_cast<std::size_t>(c)] * scale);
      WriteFloat(plan.out, dtype, out + c, normalised * ReadFloat(plan.weight, dtype, c));
    }
  }
}

}  // namespace

Status RmsNormCpu(const RmsNormArgs& args) {
  FERRY_TRY_ASSIGN(const RmsNormPlan plan, PlanRmsNorm(args));
  if (plan.rows > 0) NormRows(plan, args.x.last());
  return Ok();
}

Status AddRmsNormCpu(const AddRmsNormArgs& args) {
  FERRY_TRY_ASSIGN(const RmsNormPlan plan, PlanAddRmsNorm(args));
  if (plan.rows > 0) NormRows(plan, args.x.last());
  return Ok();
}

}  // namespace ferry::kernels
