// Checks arguments, selects the form and launches prefill attention.

#include "ferry/kernels/attention_prefill/attention_prefill.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "ferry/kernels/argument.h"
#include "ferry/kernels/attention_argument.h"
#include "ferry/kernels/op.h"

namespace ferry::kernels {
namespace {

constexpr const char* kPrefillOp = "attention_prefill";

Argument PrefillArgument(const char* name, const Tensor& tensor) {
  return {.op = kPrefillOp, .name = name, .tensor = tensor};
}

Status CheckPrefillKeys(const AttentionPrefillArgs& args) {
  const Argument q = PrefillArgument("q", args.q);
  const Argument k = PrefillArgument("k", args.k);
  const Argument v = PrefillArgument("v", args.v);
  if (!args.block_tables.none()) {
    FERRY_TRY(CheckPages(q, k, v, KeyTypes::kOfQueriesOrE4m3));
    return CheckBlockTables(PrefillArgument("block_tables", args.block_tables),
                            args.cu_seqlens_q.shape[0] - 1, args.k.shape[1]);
  }
  FERRY_TRY(k.IsView(3, 3));
  FERRY_TRY(v.IsView(3, 3));
  if (args.k.shape[0] > kMaxTokens) return k.Wrong("of at most 2^30 tokens");
  return CheckKeys(q, k, v, KeyTypes::kOfQueriesOrE4m3);
}

AttentionScales PrefillScalesOf(const AttentionPrefillArgs& args) {
  return {args.scale, args.k_scale, args.v_scale};
}

bool HasE4m3Keys(const AttentionPrefillArgs& args) { return args.k.dtype == DType::kFloat8E4m3; }

AttentionExtras ExtrasOf(const AttentionPrefillArgs& args) {
  return {args.lse, args.sinks, args.window, args.softcap};
}

Status CheckPrefillExtras(const AttentionPrefillArgs& args) {
  FERRY_TRY(CheckExtras(PrefillArgument("q", args.q), ExtrasOf(args), ScoreScaleOf(args)));
  if (!IsPlain(args) && args.stages != 2) {
    return WrongNumber(kPrefillOp, "stages", args.stages,
                       "2 with lse, sinks, a window or a softcap, for e4m3 keys, and for pages "
                       "that are not multiples of 16 tokens");
  }
  if (args.lse.none()) return Ok();
  const Argument lse = PrefillArgument("lse", args.lse);
  for (const auto& [name, tensor] :
       {std::pair("k", &args.k), std::pair("v", &args.v),
        std::pair("cu_seqlens_q", &args.cu_seqlens_q),
        std::pair("cu_seqlens_k", &args.cu_seqlens_k),
        std::pair("block_tables", &args.block_tables), std::pair("out", &args.out)}) {
    if (!tensor->none()) FERRY_TRY(lse.IsApartFrom(PrefillArgument(name, *tensor)));
  }
  return Ok();
}

Status CheckPrefillWorkspace(const AttentionPrefillArgs& args) {
  const std::int64_t floats = PrefillWorkspace(WorkOf(args), args.splits);
  if (floats == 0) return Ok();
  const Argument workspace = PrefillArgument("workspace", args.workspace);
  FERRY_TRY(workspace.IsView(1, 1));
  FERRY_TRY(workspace.HasType({DType::kFloat32}));
  FERRY_TRY(workspace.IsContiguous());
  FERRY_TRY(IsAlignedForDevice(workspace));
  if (args.workspace.last() < floats) {
    return workspace.Wrong(fmt::format("[{}] or more, for {} parts", floats, args.splits));
  }
  for (const auto& [name, tensor] :
       {std::pair("q", &args.q), std::pair("k", &args.k), std::pair("v", &args.v),
        std::pair("cu_seqlens_q", &args.cu_seqlens_q),
        std::pair("cu_seqlens_k", &args.cu_seqlens_k),
        std::pair("block_tables", &args.block_tables), std::pair("out", &args.out),
        std::pair("lse", &args.lse), std::pair("sinks", &args.sinks)}) {
    if (!tensor->none()) FERRY_TRY(workspace.IsApartFrom(PrefillArgument(name, *tensor)));
  }
  return Ok();
}

Status CheckPrefillEnds(const AttentionPrefillArgs& args) {
  const Argument q_ends = PrefillArgument("cu_seqlens_q", args.cu_seqlens_q);
  const Argument k_ends = PrefillArgument("cu_seqlens_k", args.cu_seqlens_k);
  for (const Argument& ends : {q_ends, k_ends}) {
    FERRY_TRY(ends.IsView(1, 1));
    FERRY_TRY(ends.HasType({DType::kInt32}));
  }
  // Even without sequences there is a first entry, 0.
  if (args.cu_seqlens_q.shape[0] < 1) return q_ends.Wrong("[batch + 1]");
  return k_ends.HasShapeOf(q_ends);
}

// Rows apart, and less than a tensor map can say. Sizes of 1 have any stride.
Status HasTensorMapStrides(const Argument& argument) {
  // cuTensorMapEncodeTiled takes strides in bytes below 2^40.
  constexpr std::int64_t kMapBytes = std::int64_t{1} << 40;
  const Tensor& tensor = argument.tensor;
  for (std::size_t d = 0; d + 1 < static_cast<std::size_t>(tensor.rank); ++d) {
    const bool right =
        tensor.stride[d] >= tensor.last() && tensor.stride[d] < kMapBytes / SizeOf(tensor.dtype);
    if (tensor.shape[d] > 1 && !right) {
      return argument.Wrong(
          fmt::format("with strides of {} to 2^39 - 1 for the form kWgmmaSm90", tensor.last()));
    }
  }
  return Ok();
}

}  // namespace

PrefillWork WorkOf(const AttentionPrefillArgs& args) noexcept {
  const bool paged = !args.block_tables.none();
  PrefillWork work;
  work.batch = args.cu_seqlens_q.shape[0] - 1;
  work.queries = args.q.shape[0];
  work.max_seqlen_q = args.max_seqlen_q;
  work.heads = args.q.shape[1];
  work.kv_heads = KvHeads(args);
  work.head_size = args.q.shape[2];
  if (IsPlain(args)) {
    work.most_keys = paged ? args.block_tables.shape[1] * PageTokens(args) : args.k.shape[0];
  }
  return work;
}

bool IsPlain(const AttentionPrefillArgs& args) noexcept {
  return ExtrasOf(args).none() && !HasE4m3Keys(args) && !PagesAreScattered(PageTokens(args));
}

float ScoreScaleOf(const AttentionPrefillArgs& args) noexcept {
  return ScoreScaleOf(PrefillScalesOf(args), args.k.dtype);
}

Status CheckAttentionPrefill(const AttentionPrefillArgs& args) {
  const Argument q = PrefillArgument("q", args.q);
  const Argument out = PrefillArgument("out", args.out);
  FERRY_TRY(q.IsView(3, 3));
  FERRY_TRY(q.HasType(kFloats));
  FERRY_TRY(q.HasDenseRows());
  if (args.q.shape[0] > kMaxTokens) return q.Wrong("of at most 2^30 tokens");
  FERRY_TRY(CheckPrefillEnds(args));
  FERRY_TRY(CheckPrefillKeys(args));
  FERRY_TRY(CheckAttentionOut(q, out));
  for (const auto& [name, tensor] :
       {std::pair("q", &args.q), std::pair("k", &args.k), std::pair("v", &args.v),
        std::pair("cu_seqlens_q", &args.cu_seqlens_q),
        std::pair("cu_seqlens_k", &args.cu_seqlens_k),
        std::pair("block_tables", &args.block_tables), std::pair("sinks", &args.sinks)}) {
    if (!tensor->none()) FERRY_TRY(out.IsApartFrom(PrefillArgument(name, *tensor)));
  }
  if (args.max_seqlen_q < 0 || args.max_seqlen_q > kMaxTokens) {
    return WrongNumber(kPrefillOp, "max_seqlen_q", static_cast<double>(args.max_seqlen_q),
                       "0 to 2^30");
  }
  FERRY_TRY(CheckScales(kPrefillOp, PrefillScalesOf(args), args.k.dtype));
  FERRY_TRY(CheckStages(q, "stages", args.stages));
  if (args.splits < 1 || args.splits > kMaxPrefillSplits) {
    return WrongNumber(kPrefillOp, "splits", args.splits, "1 to 256");
  }
  return CheckPrefillExtras(args);
}

Status CheckAttentionPrefillForDevice(const AttentionPrefillArgs& args) {
  const Argument q = PrefillArgument("q", args.q);
  FERRY_TRY(CheckHeadsForDevice(q));
  for (const auto& [name, tensor] : {std::pair("q", &args.q), std::pair("k", &args.k),
                                     std::pair("v", &args.v), std::pair("out", &args.out)}) {
    FERRY_TRY(IsAlignedForDevice(PrefillArgument(name, *tensor)));
  }
  // The second and the third size of a grid.
  constexpr std::int64_t kMaxGridSize = 65535;
  const PrefillTiles tiles = PrefillTilesOf(static_cast<int>(args.q.last()));
  if (args.max_seqlen_q > kMaxGridSize * 16 * tiles.warps * tiles.row_tiles) {
    return WrongNumber(kPrefillOp, "max_seqlen_q", static_cast<double>(args.max_seqlen_q),
                       "at most 4194240 for heads of 256 and 8388480 for others");
  }
  if (args.cu_seqlens_q.shape[0] - 1 > kMaxGridSize) {
    return PrefillArgument("cu_seqlens_q", args.cu_seqlens_q).Wrong("of at most 65535 sequences");
  }
  // The first size of a grid, and of that of the second kernel.
  constexpr std::int64_t kMaxGrid = std::numeric_limits<std::int32_t>::max();
  const std::int64_t each = std::max<std::int64_t>(args.splits, args.max_seqlen_q);
  if (args.splits > 1 && args.q.shape[1] > kMaxGrid / each) {
    return q.Wrong("of fewer heads: with the parts they are more than a grid has");
  }
  return CheckPrefillWorkspace(args);
}

static Status CheckWgmmaSm90Form(const AttentionPrefillArgs& args) {
  if (PagesAreScattered(PageTokens(args))) {
    return PrefillArgument("k", args.k)
        .Wrong("of pages of a multiple of 16 tokens for the form kWgmmaSm90");
  }
  if (HasE4m3Keys(args)) {
    return PrefillArgument("k", args.k)
        .Wrong(fmt::format("{} for the form kWgmmaSm90, which reads no e4m3 keys; use the form "
                           "kCpAsync or kAuto",
                           NameOf(args.q.dtype)));
  }
  if (!ExtrasOf(args).none()) {
    return Error(
        Code::kInvalidArgument,
        fmt::format("{}: the form kWgmmaSm90 has no lse, sinks, window or softcap; use the "
                    "form kCpAsync or kAuto",
                    kPrefillOp));
  }
  constexpr int kStages = WgmmaSm90TilesOf(128).stages;
  if (args.stages != kStages) {
    return WrongNumber(kPrefillOp, "stages", args.stages, "2 for the form kWgmmaSm90");
  }
  for (const auto& [name, tensor] :
       {std::pair("q", &args.q), std::pair("k", &args.k), std::pair("v", &args.v)}) {
    FERRY_TRY(HasTensorMapStrides(PrefillArgument(name, *tensor)));
  }
  return Ok();
}

Result<PrefillForm> PrefillFormOf(const AttentionPrefillArgs& args, bool has_wgmma_sm90) {
  // kAuto takes the faster form where it can and the other one without an error; a form that was
  // asked for by name is refused where it cannot work.
  if (args.form == PrefillForm::kCpAsync) return PrefillForm::kCpAsync;
  const Status can = CheckWgmmaSm90Form(args);
  if (args.form == PrefillForm::kWgmmaSm90) {
    FERRY_TRY(can);
    return PrefillForm::kWgmmaSm90;
  }
  return has_wgmma_sm90 && can ? PrefillForm::kWgmmaSm90 : PrefillForm::kCpAsync;
}

#ifdef FERRY_HAVE_CUDA
bool HasWgmmaSm90Form(cuda::StreamRef stream);  // wgmma_sm90_form.cu
Status LaunchAttentionPrefillByWgmmaSm90(const AttentionPrefillArgs& args, cuda::StreamRef stream);
Status LaunchAttentionPrefill(const AttentionPrefillArgs& args, cuda::StreamRef stream);

Status AttentionPrefill(const AttentionPrefillArgs& args, cuda::StreamRef stream) {
  FERRY_TRY(CheckAttentionPrefill(args));
  FERRY_TRY(CheckAttentionPrefillForDevice(args));
  // Asks CUDA about the device only where the answer matters. Where the form was asked for by name,
  // the launch itself finds out whether this device has code for it.
  const bool chosen = args.form == PrefillForm::kAuto && HasWgmmaSm90Form(stream);
  FERRY_TRY_ASSIGN(const PrefillForm form, PrefillFormOf(args, chosen));
  // A grid of no blocks is an error to CUDA.
  const bool none = args.q.Numel() == 0 || args.max_seqlen_q == 0 || args.cu_seqlens_q.last() == 1;
  if (none) return Ok();
  return form == PrefillForm::kWgmmaSm90 ? LaunchAttentionPrefillByWgmmaSm90(args, stream)
                                         : LaunchAttentionPrefill(args, stream);
}
#else
Status AttentionPrefill(const AttentionPrefillArgs& args, cuda::StreamRef /*stream*/) {
  FERRY_TRY(CheckAttentionPrefill(args));
  FERRY_TRY(CheckAttentionPrefillForDevice(args));
  FERRY_TRY(PrefillFormOf(args, false));
  return NoDeviceCode(kPrefillOp);
}
#endif

const cuda::Kernel kAttentionPrefillKernel =
    MakeKernel<AttentionPrefill, AttentionPrefillCpu, &AttentionPrefillArgs::q,
               &AttentionPrefillArgs::k, &AttentionPrefillArgs::v,
               &AttentionPrefillArgs::cu_seqlens_q, &AttentionPrefillArgs::cu_seqlens_k,
               &AttentionPrefillArgs::block_tables, &AttentionPrefillArgs::out,
               &AttentionPrefillArgs::lse, &AttentionPrefillArgs::sinks>(kPrefillOp);

}  // namespace ferry::kernels
