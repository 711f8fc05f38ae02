// Checks arguments, plans and launches the gated activations.

#include "ferry/kernels/gated/gated.h"

#include <fmt/core.h>

#include "ferry/kernels/argument.h"
#include "ferry/kernels/gated/gated_plan.h"
#include "ferry/kernels/op.h"

namespace ferry::kernels {
namespace {

// The halves of x as views.
struct Halves {
  Tensor gate;
  Tensor up;
};
Halves HalvesOf(const Tensor& x) {
  Halves halves{x, x};
  const std::size_t last = static_cast<std::size_t>(x.rank) - 1;
  halves.gate.shape[last] = halves.up.shape[last] = x.last() / 2;
  if (x.data != nullptr) {
    halves.up.data = static_cast<std::byte*>(x.data) + x.last() / 2 * SizeOf(x.dtype);
  }
  return halves;
}

Status CheckGated(const GatedArgs& args, const Halves& halves) {
  const char* const op = NameOf(args.gate);
  const Argument x{op, "x", args.x};
  const Argument out{op, "out", args.out};
  const Argument gate{op, "the first half of x", halves.gate};
  const Argument up{op, "the second half of x", halves.up};
  FERRY_TRY(x.HasType(kFloats));
  FERRY_TRY(x.HasDenseRows());
  FERRY_TRY(out.IsView(1, kMaxRank));
  FERRY_TRY(out.HasTypeOf(x));
  FERRY_TRY(out.HasShapeOf(gate));
  FERRY_TRY(out.HasDenseRows());
  FERRY_TRY(out.IsWritable());
  // In place over the first half only: a thread reads its word of both halves before it writes.
  FERRY_TRY(out.IsOrIsApartFrom(gate));
  return out.IsApartFrom(up);
}

}  // namespace

const char* NameOf(Gate gate) noexcept {
  switch (gate) {
    case Gate::kSilu: return "silu_and_mul";
    case Gate::kGelu: return "gelu_and_mul";
    case Gate::kGeluTanh: return "gelu_tanh_and_mul";
  }
  return nullptr;
}

Result<Gate> GateNamed(std::string_view op) {
  for (std::uint8_t number = 0;; ++number) {
    const char* const name = NameOf(Gate{number});
    if (name == nullptr) {
      return Error(Code::kInvalidArgument, fmt::format("there is no gated op \"{}\"", op));
    }
    if (op == name) return Gate{number};
  }
}

#ifdef FERRY_HAVE_CUDA
Status LaunchGated(const GatedPlan& plan, cuda::StreamRef stream);  // gated.cu
#else
static Status LaunchGated(const GatedPlan& plan, cuda::StreamRef) {
  return NoDeviceCode(NameOf(plan.activation));
}
#endif

Result<GatedPlan> PlanGated(const GatedArgs& args) {
  const char* const op = NameOf(args.gate);
  if (op == nullptr) {
    return Error(Code::kInvalidArgument,
                 fmt::format("gated_mul: there is no gate {}", static_cast<int>(args.gate)));
  }
  const Argument x{op, "x", args.x};
  FERRY_TRY(x.IsView(1, kMaxRank));
  if (args.x.last() % 2 != 0) return x.Wrong("of an even last size, the gate and what it lets by");
  const Halves halves = HalvesOf(args.x);
  FERRY_TRY(CheckGated(args, halves));
  GatedPlan plan;
  if (args.out.Numel() == 0) return plan;
  const std::int64_t cols = args.out.last();
  if (args.out.Numel() / cols > kMaxRows) return x.Wrong("one of at most 2^31 - 1 rows");
  const JoinedRows joined = JoinRows({&args.x, &args.out});
  plan.gate = halves.gate.data;
  plan.up = halves.up.data;
  plan.out = args.out.data;
  plan.x_strides = joined.strides[0];
  plan.out_strides = joined.strides[1];
  plan.sizes = joined.sizes;
  plan.dtype = args.x.dtype;
  plan.activation = args.gate;
  const std::int64_t packed = 16 / SizeOf(plan.dtype);
  plan.wide = cols % packed == 0 && RowsAreAligned(args.x, 16) && RowsAreAligned(args.out, 16);
  FERRY_TRY_ASSIGN(plan.tiles,
                   TileRows(op, joined.sizes.count(), plan.wide ? cols / packed : cols, 1));
  return plan;
}

Status GatedMul(const GatedArgs& args, cuda::StreamRef stream) {
  FERRY_TRY_ASSIGN(const GatedPlan plan, PlanGated(args));
  return plan.tiles.blocks == 0 ? Ok() : LaunchGated(plan, stream);
}

const cuda::Kernel kGatedMulKernel =
    MakeKernel<GatedMul, GatedMulCpu, &GatedArgs::x, &GatedArgs::out>("gated_mul");

}  // namespace ferry::kernels
