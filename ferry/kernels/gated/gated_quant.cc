// Checks arguments, plans and launches the quantised silu_and_mul.

#include "ferry/kernels/gated/gated_quant.h"

#include <algorithm>

#include "ferry/kernels/argument.h"
#include "ferry/kernels/gated/gated_quant_plan.h"
#include "ferry/kernels/op.h"

namespace ferry::kernels {
namespace {

constexpr const char* kSiluAndMulQuantName = "silu_and_mul_quant";

Argument GatedQuantArgument(const char* name, const Tensor& tensor) {
  return {.op = kSiluAndMulQuantName, .name = name, .tensor = tensor};
}

// The shape of the output, as a view of the first half of x.
Tensor FirstHalfOf(const Tensor& x) {
  Tensor half = x;
  half.shape[static_cast<std::size_t>(x.rank) - 1] = x.last() / 2;
  return half;
}

Result<QuantScale> CheckGatedQuant(const SiluAndMulQuantArgs& args) {
  const Argument x = GatedQuantArgument("input", args.input);
  const Argument out = GatedQuantArgument("result", args.result);
  const Argument scale = GatedQuantArgument("scale", args.scale);
  FERRY_TRY(x.IsView(1, kMaxRank));
  FERRY_TRY(x.HasType(kFloats));
  FERRY_TRY(x.HasDenseRows());
  if (args.input.last() % 2 != 0)
    return x.Wrong("of an even last size, the gate and what it lets by");
  const Tensor half = FirstHalfOf(args.input);
  FERRY_TRY(CheckQuantOut(out, GatedQuantArgument("the first half of input", half)));
  FERRY_TRY(out.IsApartFrom(x));
  const std::int64_t rows = RowsOf(args.input);
  if (rows > kMaxRows) return x.Wrong("one of at most 2^31 - 1 rows");
  if (args.input.last() > kMaxRows) return x.Wrong("one of at most 2^31 - 1 columns");
  if (args.mode == QuantMode::kPerToken) FERRY_TRY(scale.IsApartFrom(x));
  return CheckQuantScale({scale, GatedQuantArgument("scale_ub", args.scale_ub), args.mode, rows},
                         out);
}

Status PlanForm(GatedQuantPlan* plan) {
  if (plan->scale.given != nullptr) {
    plan->form = GatedQuantForm::kTiles;
    FERRY_TRY_ASSIGN(plan->tiles, TileRows(kSiluAndMulQuantName, plan->rows, plan->words, 1));
    return Ok();
  }
  const std::uint32_t threads =
      plan->words / kGatedQuantHeld + (plan->words % kGatedQuantHeld != 0 ? 1 : 0);
  plan->form = plan->wide && threads <= kGatedQuantMaxThreads ? GatedQuantForm::kHeldWords
                                                              : GatedQuantForm::kTwoPass;
  plan->threads = std::min((threads + 31) / 32 * 32, kGatedQuantMaxThreads);
  return Ok();
}

}  // namespace

#ifdef FERRY_HAVE_CUDA
Status LaunchSiluAndMulQuant(const GatedQuantPlan& plan, cuda::StreamRef stream);
#else
static Status LaunchSiluAndMulQuant(const GatedQuantPlan&, cuda::StreamRef) {
  return NoDeviceCode(kSiluAndMulQuantName);
}
#endif

Result<GatedQuantPlan> PlanSiluAndMulQuant(const SiluAndMulQuantArgs& args) {
  GatedQuantPlan plan;
  FERRY_TRY_ASSIGN(plan.scale, CheckGatedQuant(args));
  if (args.result.Numel() == 0) return plan;
  const std::int64_t cols = args.result.last();
  const JoinedRows joined = JoinRows({&args.input, &args.result});
  plan.gate = args.input.data;
  plan.up = static_cast<const std::byte*>(args.input.data) + cols * SizeOf(args.input.dtype);
  plan.out = args.result.data;
  plan.x_strides = joined.strides[0];
  plan.out_strides = joined.strides[1];
  plan.sizes = joined.sizes;
  plan.rows = static_cast<std::uint32_t>(joined.sizes.count());
  plan.dtype = args.input.dtype;
  const std::int64_t packed = 16 / SizeOf(plan.dtype);
  // A word of x becomes half or a quarter as many bytes of out.
  plan.wide =
      cols % packed == 0 && RowsAreAligned(args.input, 16) && RowsAreAligned(args.result, packed);
  plan.words = static_cast<std::uint32_t>(plan.wide ? cols / packed : cols);
  FERRY_TRY(PlanForm(&plan));
  return plan;
}

Status SiluAndMulQuant(const SiluAndMulQuantArgs& args, cuda::StreamRef stream) {
  FERRY_TRY_ASSIGN(const GatedQuantPlan plan, PlanSiluAndMulQuant(args));
  return plan.rows == 0 ? Ok() : LaunchSiluAndMulQuant(plan, stream);
}

const cuda::Kernel kSiluAndMulQuantKernel =
    MakeKernel<SiluAndMulQuant, SiluAndMulQuantCpu, &SiluAndMulQuantArgs::input,
               &SiluAndMulQuantArgs::result, &SiluAndMulQuantArgs::scale,
               &SiluAndMulQuantArgs::scale_ub>(kSiluAndMulQuantName);

}  // namespace ferry::kernels
