// Checks arguments and launches RMS norm, with and without a residual.

#include "ferry/kernels/rms_norm/rms_norm.h"

#include "ferry/kernels/argument.h"
#include "ferry/kernels/op.h"
#include "ferry/kernels/rms_norm/rms_norm_plan.h"

namespace ferry::kernels {
namespace {

constexpr const char* kRmsNormName = "rms_norm";
constexpr const char* kAddRmsNormName = "add_rms_norm";

Status CheckNormOutput(const Argument& out, const Argument& x, const Argument& weight) {
  FERRY_TRY(CheckLikeNormInput(out, x));
  FERRY_TRY(out.IsWritable());
  FERRY_TRY(out.IsOrIsApartFrom(x));
  return out.IsApartFrom(weight);
}

}  // namespace

#ifdef FERRY_HAVE_CUDA
Status LaunchRmsNorm(const RmsNormPlan& plan, cuda::StreamRef stream);  // rms_norm.cu
#else
static Status LaunchRmsNorm(const RmsNormPlan& plan, cuda::StreamRef) {
  return NoDeviceCode(plan.residual != nullptr ? kAddRmsNormName : kRmsNormName);
}
#endif

Result<RmsNormPlan> PlanRmsNorm(const RmsNormArgs& args) {
  const Argument x{kRmsNormName, "x", args.x};
  const Argument weight{kRmsNormName, "weight", args.weight};
  FERRY_TRY(CheckNormInput(x));
  FERRY_TRY(CheckNormWeight(weight, x));
  FERRY_TRY(CheckNormOutput({kRmsNormName, "out", args.out}, x, weight));
  FERRY_TRY(CheckNormEps(kRmsNormName, args.eps));
  if (args.x.Numel() == 0) return RmsNormPlan{};
  const JoinedRows joined = JoinRows({&args.x, &args.out});
  RmsNormPlan plan = BeginNormPlan(args.x, args.weight, joined, args.eps);
  plan.out = args.out.data;
  plan.out_strides = joined.strides[1];
  FinishNormPlan(args.weight, RowsAreAligned(args.x, 16) && RowsAreAligned(args.out, 16), &plan);
  return plan;
}

Result<RmsNormPlan> PlanAddRmsNorm(const AddRmsNormArgs& args) {
  const Argument x{kAddRmsNormName, "x", args.x};
  const Argument residual{kAddRmsNormName, "residual", args.residual};
  const Argument weight{kAddRmsNormName, "weight", args.weight};
  const Argument residual_out{kAddRmsNormName, "residual_out", args.residual_out};
  const Argument out{kAddRmsNormName, "out", args.out};
  FERRY_TRY(CheckNormInput(x));
  FERRY_TRY(CheckLikeNormInput(residual, x));
  FERRY_TRY(CheckNormWeight(weight, x));
  FERRY_TRY(CheckNormOutput(residual_out, x, weight));
  FERRY_TRY(CheckNormOutput(out, x, weight));
  FERRY_TRY(residual_out.IsOrIsApartFrom(residual));
  FERRY_TRY(out.IsOrIsApartFrom(residual));
  // Each may be an input, but not both the same one.
  FERRY_TRY(out.IsApartFrom(residual_out));
  FERRY_TRY(CheckNormEps(kAddRmsNormName, args.eps));
  if (args.x.Numel() == 0) return RmsNormPlan{};
  const JoinedRows joined = JoinRows({&args.x, &args.residual, &args.residual_out, &args.out});
  RmsNormPlan plan = BeginNormPlan(args.x, args.weight, joined, args.eps);
  plan.residual = args.residual.data;
  plan.residual_strides = joined.strides[1];
  plan.residual_out = args.residual_out.data;
  plan.residual_out_strides = joined.strides[2];
  plan.out = args.out.data;
  plan.out_strides = joined.strides[3];
  FinishNormPlan(args.weight,
                 RowsAreAligned(args.x, 16) && RowsAreAligned(args.residual, 16) &&
                     RowsAreAligned(args.residual_out, 16) && RowsAreAligned(args.out, 16),
                 &plan);
  return plan;
}

Status RmsNorm(const RmsNormArgs& args, cuda::StreamRef stream) {
  FERRY_TRY_ASSIGN(const RmsNormPlan plan, PlanRmsNorm(args));
  return plan.blocks == 0 ? Ok() : LaunchRmsNorm(plan, stream);
}

Status AddRmsNorm(const AddRmsNormArgs& args, cuda::StreamRef stream) {
  FERRY_TRY_ASSIGN(const RmsNormPlan plan, PlanAddRmsNorm(args));
  return plan.blocks == 0 ? Ok() : LaunchRmsNorm(plan, stream);
}

const cuda::Kernel kRmsNormKernel =
    MakeKernel<RmsNorm, RmsNormCpu, &RmsNormArgs::x, &RmsNormArgs::weight, &RmsNormArgs::out>(
        kRmsNormName);
const cuda::Kernel kAddRmsNormKernel =
    MakeKernel<AddRmsNorm, AddRmsNormCpu, &AddRmsNormArgs::x, &AddRmsNormArgs::residual,
               &AddRmsNormArgs::weight, &AddRmsNormArgs::residual_out, &AddRmsNormArgs::out>(
        kAddRmsNormName);

}  // namespace ferry::kernels
