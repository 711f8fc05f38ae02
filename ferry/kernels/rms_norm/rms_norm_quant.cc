// Checks arguments, plans and launches the quantised RMS norm.

#include "ferry/kernels/rms_norm/rms_norm_quant.h"

#include <algorithm>

#include "ferry/kernels/argument.h"
#include "ferry/kernels/op.h"
#include "ferry/kernels/rms_norm/rms_norm_quant_plan.h"

namespace ferry::kernels {
namespace {

constexpr const char* kRmsNormQuantName = "rms_norm_quant";

Argument NormQuantArgument(const char* name, const Tensor& tensor) {
  return {.op = kRmsNormQuantName, .name = name, .tensor = tensor};
}

Status CheckNormQuantResidual(const RmsNormQuantArgs& args, const Argument& x,
                              const Argument& weight) {
  if (args.residual.none()) return Ok();
  const Argument residual = NormQuantArgument("residual", args.residual);
  FERRY_TRY(CheckLikeNormInput(residual, x));
  FERRY_TRY(residual.IsWritable());
  FERRY_TRY(residual.IsApartFrom(x));
  FERRY_TRY(residual.IsApartFrom(weight));
  FERRY_TRY(residual.IsApartFrom(NormQuantArgument("scale", args.scale)));
  return NormQuantArgument("result", args.result).IsApartFrom(residual);
}

// A thread block of whole warps for each row, whose threads have eight accesses or more each.
void PlanLongRows(RmsNormPlan* norm) {
  norm->form = RmsNormForm::kTwoPass;
  const std::uint32_t threads = (norm->words + 7) / 8;
  norm->threads_per_row = std::clamp((threads + 31) / 32 * 32, 32U, kRmsNormMaxThreads);
  norm->rows_per_block = 1;
  norm->blocks = norm->rows;
}

}  // namespace

#ifdef FERRY_HAVE_CUDA
Status LaunchRmsNormQuant(const RmsNormQuantPlan& plan, cuda::StreamRef stream);
#else
static Status LaunchRmsNormQuant(const RmsNormQuantPlan&, cuda::StreamRef) {
  return NoDeviceCode(kRmsNormQuantName);
}
#endif

Result<RmsNormQuantPlan> PlanRmsNormQuant(const RmsNormQuantArgs& args) {
  const Argument x = NormQuantArgument("input", args.input);
  const Argument weight = NormQuantArgument("weight", args.weight);
  const Argument out = NormQuantArgument("result", args.result);
  const Argument scale = NormQuantArgument("scale", args.scale);
  FERRY_TRY(CheckNormInput(x));
  FERRY_TRY(CheckNormWeight(weight, x));
  FERRY_TRY(CheckQuantOut(out, x));
  FERRY_TRY(out.IsApartFrom(x));
  FERRY_TRY(out.IsApartFrom(weight));
  FERRY_TRY(CheckNormEps(kRmsNormQuantName, args.eps));
  RmsNormQuantPlan plan;
  FERRY_TRY_ASSIGN(plan.scale, CheckQuantScale({scale, NormQuantArgument("scale_ub", args.scale_ub),
                                                args.mode, RowsOf(args.input)},
                                               out));
  FERRY_TRY(CheckNormQuantResidual(args, x, weight));
  if (args.mode == QuantMode::kPerToken) {
    FERRY_TRY(scale.IsApartFrom(x));
    FERRY_TRY(scale.IsApartFrom(weight));
  }
  if (args.input.Numel() == 0) return plan;
  const bool residual = !args.residual.none();
  const JoinedRows joined =
      JoinRows({&args.input, &args.result, residual ? &args.residual : &args.input});
  plan.norm = BeginNormPlan(args.input, args.weight, joined, args.eps);
  plan.out = args.result.data;
  plan.out_strides = joined.strides[1];
  if (residual) {
    plan.norm.residual = args.residual.data;
    plan.norm.residual_out = args.residual.data;
    plan.norm.residual_strides = plan.norm.residual_out_strides = joined.strides[2];
  }
  // A word of x becomes half or a quarter as many bytes of out.
  const bool aligned = RowsAreAligned(args.input, 16) &&
                       (!residual || RowsAreAligned(args.residual, 16)) &&
                       RowsAreAligned(args.result, 16 / SizeOf(args.input.dtype));
  FinishNormPlan(args.weight, aligned, &plan.norm);
  if (!plan.norm.wide || plan.norm.form == RmsNormForm::kTwoPass) PlanLongRows(&plan.norm);
  return plan;
}

Status RmsNormQuant(const RmsNormQuantArgs& args, cuda::StreamRef stream) {
  FERRY_TRY_ASSIGN(const RmsNormQuantPlan plan, PlanRmsNormQuant(args));
  return plan.norm.blocks == 0 ? Ok() : LaunchRmsNormQuant(plan, stream);
}

const cuda::Kernel kRmsNormQuantKernel =
    MakeKernel<RmsNormQuant, RmsNormQuantCpu, &RmsNormQuantArgs::input, &RmsNormQuantArgs::residual,
               &RmsNormQuantArgs::weight, &RmsNormQuantArgs::result, &RmsNormQuantArgs::scale,
               &RmsNormQuantArgs::scale_ub>(kRmsNormQuantName);

}  // namespace ferry::kernels
