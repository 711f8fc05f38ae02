// CPU form of the quantised silu_and_mul.

#include <vector>

#include "ferry/kernels/activation.h"
#include "ferry/kernels/gated/gated_quant.h"
#include "ferry/kernels/gated/gated_quant_plan.h"
#include "ferry/kernels/number.h"

namespace ferry::kernels {

Status SiluAndMulQuantCpu(const SiluAndMulQuantArgs& args) {
  FERRY_TRY_ASSIGN(const GatedQuantPlan plan, PlanSiluAndMulQuant(args));
  if (plan.rows == 0) return Ok();
  std::vector<float> values(static_cast<std::size_t>(args.result.last()));
  for (std::uint32_t row = 0; row < plan.rows; ++row) {
    std::int64_t x = RowOffset(plan.sizes, plan.x_strides, row);
    for (float& value : values) {
      const double gate = ReadFloat(plan.gate, plan.dtype, x);
      const double up = ReadFloat(plan.up, plan.dtype, x);
      value = RoundTo(plan.dtype, static_cast<float>(Silu(gate) * up));
      ++x;
    }
    QuantiseRow(plan.scale, row, values, plan.out, RowOffset(plan.sizes, plan.out_strides, row));
  }
  return Ok();
}

}  // namespace ferry::kernels
