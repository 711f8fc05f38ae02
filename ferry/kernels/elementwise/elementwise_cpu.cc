// CPU forms of the elementwise ops.

#include <cmath>

#include "ferry/kernels/activation.h"
#include "ferry/kernels/elementwise/elementwise.h"
#include "ferry/kernels/elementwise/elementwise_plan.h"
#include "ferry/kernels/number.h"

namespace ferry::kernels {

Status FusedAddGeluCpu(const AddGeluArgs& args) {
  FERRY_TRY_ASSIGN(const AddGeluPlan plan, PlanAddGelu(args));
  const auto gelu = plan.form == GeluForm::kExact ? Gelu : GeluTanh;
  for (std::uint32_t row = 0; row < plan.tiles.rows; ++row) {
    const std::int64_t x = RowOffset(plan.sizes, plan.x_strides, row);
    const std::int64_t out = RowOffset(plan.sizes, plan.out_strides, row);
    for (std::int64_t i = 0; i < plan.cols; ++i) {
      const double sum = double{ReadFloat(plan.x, plan.dtype, x + i)} +
                         double{ReadFloat(plan.bias, plan.dtype, i)};
      WriteFloat(plan.out, plan.dtype, out + i, static_cast<float>(gelu(sum)));
    }
  }
  return Ok();
}

Status ElementWiseMulAddCpu(const MulAddArgs& args) {
  FERRY_TRY_ASSIGN(const MulAddPlan plan, PlanMulAdd(args));
  for (std::uint32_t row = 0; row < plan.tiles.rows; ++row) {
    const std::int64_t a = RowOffset(plan.sizes, plan.a_strides, row);
    const std::int64_t b = RowOffset(plan.sizes, plan.b_strides, row);
    const std::int64_t c = RowOffset(plan.sizes, plan.c_strides, row);
    const std::int64_t out = RowOffset(plan.sizes, plan.out_strides, row);
    for (std::int64_t i = 0; i < plan.cols; ++i) {
      const float sum =
          std::fma(ReadFloat(plan.a, plan.dtype, a + i), ReadFloat(plan.b, plan.dtype, b + i),
                   ReadFloat(plan.c, plan.dtype, c + i));
      WriteFloat(plan.out, plan.dtype, out + i, sum);
    }
  }
  return Ok();
}

}  // namespace ferry::kernels
