// Checks arguments, plans and launches the elementwise ops.

#include "ferry/kernels/elementwise/elementwise.h"

#include <algorithm>
#include <array>

#include "ferry/kernels/argument.h"
#include "ferry/kernels/elementwise/elementwise_plan.h"
#include "ferry/kernels/op.h"

namespace ferry::kernels {
namespace {

constexpr const char* kAddGeluName = "fused_add_gelu";
constexpr const char* kMulAddName = "element_wise_mul_add";

Status CheckFirst(const Argument& first) {
  FERRY_TRY(first.IsView(1, kMaxRank));
  FERRY_TRY(first.HasType(kFloats));
  FERRY_TRY(first.HasDenseRows());
  const Tensor& tensor = first.tensor;
  if (tensor.last() > 0 && tensor.Numel() / tensor.last() > kMaxRows) {
    return first.Wrong("one of at most 2^31 - 1 rows");
  }
  return Ok();
}

Status CheckAlike(const Argument& other, const Argument& first) {
  FERRY_TRY(other.IsView(1, kMaxRank));
  FERRY_TRY(other.HasTypeOf(first));
  FERRY_TRY(other.HasShapeOf(first));
  return other.HasDenseRows();
}

// The op treats all elements alike, and one long row leaves no threads idle at the ends of short
// ones.
// Contiguous tensors as one row, where a row can be so long.
MulAddArgs InOneRow(const MulAddArgs& args) {
  MulAddArgs flat = args;
  const std::int64_t count = args.a.Numel();
  const std::array<Tensor*, 4> tensors = {&flat.a, &flat.b, &flat.c, &flat.out};
  if (count > kMaxRows || !std::all_of(tensors.begin(), tensors.end(), [](const Tensor* tensor) {
        return tensor->IsContiguous();
      })) {
    return args;
  }
  for (Tensor* tensor : tensors) {
    *tensor = Tensor::Contiguous(tensor->data, tensor->dtype, {count});
  }
  return flat;
}

}  // namespace

#ifdef FERRY_HAVE_CUDA
Status LaunchAddGelu(const AddGeluPlan& plan, cuda::StreamRef stream);  // elementwise.cu
Status LaunchMulAdd(const MulAddPlan& plan, cuda::StreamRef stream);
#else
static Status LaunchAddGelu(const AddGeluPlan&, cuda::StreamRef) {
  return NoDeviceCode(kAddGeluName);
}
static Status LaunchMulAdd(const MulAddPlan&, cuda::StreamRef) { return NoDeviceCode(kMulAddName); }
#endif

Result<AddGeluPlan> PlanAddGelu(const AddGeluArgs& args) {
  const Argument x{kAddGeluName, "x", args.x};
  const Argument bias{kAddGeluName, "bias", args.bias};
  const Argument out{kAddGeluName, "out", args.out};
  FERRY_TRY(CheckFirst(x));
  FERRY_TRY(bias.IsView(1, 1));
  FERRY_TRY(bias.HasTypeOf(x));
  FERRY_TRY(bias.HasShape({args.x.last()}, "the last size of x"));
  FERRY_TRY(bias.IsContiguous());
  FERRY_TRY(CheckAlike(out, x));
  FERRY_TRY(out.IsWritable());
  FERRY_TRY(out.IsOrIsApartFrom(x));
  FERRY_TRY(out.IsApartFrom(bias));
  AddGeluPlan plan;
  if (args.x.Numel() == 0) return plan;
  const JoinedRows joined = JoinRows({&args.x, &args.out});
  plan.x = args.x.data;
  plan.bias = args.bias.data;
  plan.out = args.out.data;
  plan.x_strides = joined.strides[0];
  plan.out_strides = joined.strides[1];
  plan.sizes = joined.sizes;
  plan.cols = args.x.last();
  plan.dtype = args.x.dtype;
  plan.form = args.form;
  // Words need rows whose length and beginnings are multiples of 16 bytes in all tensors; otherwise
  // the same kernel runs by elements.
  const std::int64_t packed = 16 / SizeOf(plan.dtype);
  plan.wide = plan.cols % packed == 0 && RowsAreAligned(args.x, 16) &&
              RowsAreAligned(args.bias, 16) && RowsAreAligned(args.out, 16);
  FERRY_TRY_ASSIGN(plan.tiles, TileRows(kAddGeluName, joined.sizes.count(),
                                        plan.wide ? plan.cols / packed : plan.cols, kAddGeluWords));
  return plan;
}

Result<MulAddPlan> PlanMulAdd(const MulAddArgs& given) {
  const Argument a{kMulAddName, "a", given.a};
  const Argument b{kMulAddName, "b", given.b};
  const Argument c{kMulAddName, "c", given.c};
  const Argument out{kMulAddName, "out", given.out};
  FERRY_TRY(CheckFirst(a));
  FERRY_TRY(CheckAlike(b, a));
  FERRY_TRY(CheckAlike(c, a));
  FERRY_TRY(CheckAlike(out, a));
  FERRY_TRY(out.IsWritable());
  FERRY_TRY(out.IsOrIsApartFrom(a));
  FERRY_TRY(out.IsOrIsApartFrom(b));
  FERRY_TRY(out.IsOrIsApartFrom(c));
  MulAddPlan plan;
  if (given.a.Numel() == 0) return plan;
  const MulAddArgs args = InOneRow(given);
  const JoinedRows joined = JoinRows({&args.a, &args.b, &args.c, &args.out});
  plan.a = args.a.data;
  plan.b = args.b.data;
  plan.c = args.c.data;
  plan.out = args.out.data;
  plan.a_strides = joined.strides[0];
  plan.b_strides = joined.strides[1];
  plan.c_strides = joined.strides[2];
  plan.out_strides = joined.strides[3];
  plan.sizes = joined.sizes;
  plan.cols = args.a.last();
  plan.dtype = args.a.dtype;
  const std::int64_t packed = 16 / SizeOf(plan.dtype);
  plan.wide = plan.cols % packed == 0 && RowsAreAligned(args.a, 16) && RowsAreAligned(args.b, 16) &&
              RowsAreAligned(args.c, 16) && RowsAreAligned(args.out, 16);
  FERRY_TRY_ASSIGN(plan.tiles, TileRows(kMulAddName, joined.sizes.count(),
                                        plan.wide ? plan.cols / packed : plan.cols, 1));
  return plan;
}

Status FusedAddGelu(const AddGeluArgs& args, cuda::StreamRef stream) {
  FERRY_TRY_ASSIGN(const AddGeluPlan plan, PlanAddGelu(args));
  return plan.tiles.blocks == 0 ? Ok() : LaunchAddGelu(plan, stream);
}

Status ElementWiseMulAdd(const MulAddArgs& args, cuda::StreamRef stream) {
  FERRY_TRY_ASSIGN(const MulAddPlan plan, PlanMulAdd(args));
  return plan.tiles.blocks == 0 ? Ok() : LaunchMulAdd(plan, stream);
}

const cuda::Kernel kFusedAddGeluKernel =
    MakeKernel<FusedAddGelu, FusedAddGeluCpu, &AddGeluArgs::x, &AddGeluArgs::bias,
               &AddGeluArgs::out>(kAddGeluName);
const cuda::Kernel kElementWiseMulAddKernel =
    MakeKernel<ElementWiseMulAdd, ElementWiseMulAddCpu, &MulAddArgs::a, &MulAddArgs::b,
               &MulAddArgs::c, &MulAddArgs::out>(kMulAddName);

}  // namespace ferry::kernels
