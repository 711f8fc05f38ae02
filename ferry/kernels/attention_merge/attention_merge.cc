// Checks arguments, plans and launches the merge of attention states.

#include "ferry/kernels/attention_merge/attention_merge.h"

#include "ferry/kernels/argument.h"
#include "ferry/kernels/attention_merge/attention_merge_plan.h"
#include "ferry/kernels/op.h"

namespace ferry::kernels {
namespace {

constexpr const char* kMergeName = "merge_attention_states";

Argument MergeArgument(const char* name, const Tensor& tensor) {
  return {.op = kMergeName, .name = name, .tensor = tensor};
}

Status CheckMergeOut(const AttentionMergeArgs& args) {
  const Argument a = MergeArgument("out_a", args.out_a);
  const Argument b = MergeArgument("out_b", args.out_b);
  const Argument out = MergeArgument("out", args.out);
  FERRY_TRY(a.IsView(3, 3));
  FERRY_TRY(a.HasType(kFloats));
  FERRY_TRY(a.HasDenseRows());
  for (const Argument& other : {b, out}) {
    FERRY_TRY(other.IsView(3, 3));
    FERRY_TRY(other.HasTypeOf(a));
    FERRY_TRY(other.HasShapeOf(a));
    FERRY_TRY(other.HasDenseRows());
  }
  FERRY_TRY(out.IsWritable());
  FERRY_TRY(out.IsOrIsApartFrom(a));
  return out.IsOrIsApartFrom(b);
}

Status CheckMergeLse(const AttentionMergeArgs& args) {
  const Argument out = MergeArgument("out", args.out);
  const Argument lse_a = MergeArgument("lse_a", args.lse_a);
  const Argument lse_b = MergeArgument("lse_b", args.lse_b);
  const Argument lse = MergeArgument("lse", args.lse);
  for (const Argument& state : {lse_a, lse_b, lse}) {
    if (&state.tensor == &args.lse && args.lse.none()) continue;
    FERRY_TRY(state.IsView(2, 2));
    FERRY_TRY(state.HasType({DType::kFloat32}));
    FERRY_TRY(state.HasShape({args.out_a.shape[0], args.out_a.shape[1]},
                             "the queries and the heads of out_a"));
    FERRY_TRY(out.IsApartFrom(state));
  }
  if (args.lse.none()) return Ok();
  FERRY_TRY(lse.IsWritable());
  for (const Argument& read :
       {lse_a, lse_b, MergeArgument("out_a", args.out_a), MergeArgument("out_b", args.out_b)}) {
    FERRY_TRY(lse.IsApartFrom(read));
  }
  return Ok();
}

MergeLse LseOf(const Tensor& lse) {
  return {static_cast<float*>(lse.data), lse.stride[0], lse.stride[1]};
}

}  // namespace

#ifdef FERRY_HAVE_CUDA
Status LaunchAttentionMerge(const AttentionMergePlan& plan, cuda::StreamRef stream);
#else
static Status LaunchAttentionMerge(const AttentionMergePlan&, cuda::StreamRef) {
  return NoDeviceCode(kMergeName);
}
#endif

Result<AttentionMergePlan> PlanAttentionMerge(const AttentionMergeArgs& args) {
  FERRY_TRY(CheckMergeOut(args));
  FERRY_TRY(CheckMergeLse(args));
  AttentionMergePlan plan;
  plan.lse_a = LseOf(args.lse_a);
  plan.lse_b = LseOf(args.lse_b);
  if (!args.lse.none()) plan.lse = LseOf(args.lse);
  // Heads without elements have nothing to merge, and their lse is left alone.
  if (args.out.Numel() == 0) return plan;
  if (args.out.shape[0] > kMaxRows / args.out.shape[1]) {
    return MergeArgument("out_a", args.out_a).Wrong("of at most 2^31 - 1 heads in all");
  }
  const JoinedRows joined = JoinRows({&args.out_a, &args.out_b, &args.out});
  plan.out_a = args.out_a.data;
  plan.out_b = args.out_b.data;
  plan.out = args.out.data;
  plan.a_strides = joined.strides[0];
  plan.b_strides = joined.strides[1];
  plan.out_strides = joined.strides[2];
  plan.sizes = joined.sizes;
  plan.heads = static_cast<std::uint32_t>(args.out.shape[1]);
  plan.dtype = args.out.dtype;
  const std::int64_t packed = 16 / SizeOf(plan.dtype);
  const std::int64_t cols = args.out.last();
  plan.wide = cols % packed == 0 && RowsAreAligned(args.out_a, 16) &&
              RowsAreAligned(args.out_b, 16) && RowsAreAligned(args.out, 16);
  FERRY_TRY_ASSIGN(plan.tiles,
                   TileRows(kMergeName, joined.sizes.count(), plan.wide ? cols / packed : cols, 1));
  return plan;
}

Status AttentionMerge(const AttentionMergeArgs& args, cuda::StreamRef stream) {
  FERRY_TRY_ASSIGN(const AttentionMergePlan plan, PlanAttentionMerge(args));
  return plan.tiles.blocks == 0 ? Ok() : LaunchAttentionMerge(plan, stream);
}

const cuda::Kernel kAttentionMergeKernel =
    MakeKernel<AttentionMerge, AttentionMergeCpu, &AttentionMergeArgs::out_a,
               &AttentionMergeArgs::lse_a, &AttentionMergeArgs::out_b, &AttentionMergeArgs::lse_b,
               &AttentionMergeArgs::out, &AttentionMergeArgs::lse>(kMergeName);

}  // namespace ferry::kernels
