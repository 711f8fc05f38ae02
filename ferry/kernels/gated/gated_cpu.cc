// CPU form of the gated activations.

#include "ferry/kernels/activation.h"
#include "ferry/kernels/gated/gated.h"
#include "ferry/kernels/gated/gated_plan.h"
#include "ferry/kernels/number.h"

namespace ferry::kernels {
namespace {

double Activated(Gate gate, double x) {
  switch (gate) {
    case Gate::kSilu: return Silu(x);
    case Gate::kGelu: return Gelu(x);
    case Gate::kGeluTanh: return GeluTanh(x);
  }
  return x;
}

}  // namespace

Status GatedMulCpu(const GatedArgs& args) {
  FERRY_TRY_ASSIGN(const GatedPlan plan, PlanGated(args));
  for (std::uint32_t row = 0; row < plan.tiles.rows; ++row) {
    const std::int64_t x = RowOffset(plan.sizes, plan.x_strides, row);
    const std::int64_t out = RowOffset(plan.sizes, plan.out_strides, row);
    for (std::int64_t i = 0; i < args.out.last(); ++i) {
      const double gate = ReadFloat(plan.gate, plan.dtype, x + i);
      const double up = ReadFloat(plan.up, plan.dtype, x + i);
      WriteFloat(plan.out, plan.dtype, out + i,
                 static_cast<float>(Activated(plan.activation, gate) * up));
    }
  }
  return Ok();
}

}  // namespace ferry::kernels
