// Checks arguments, plans and launches decode attention.

#include "ferry/kernels/attention_decode/attention_decode.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "ferry/kernels/argument.h"
#include "ferry/kernels/attention_argument.h"
#include "ferry/kernels/attention_decode/decode_layout.h"
#include "ferry/kernels/op.h"

namespace ferry::kernels {
namespace {

constexpr const char* kDecodeOp = "attention_decode";

Argument DecodeArgument(const char* name, const Tensor& tensor) {
  return {.op = kDecodeOp, .name = name, .tensor = tensor};
}

// A multiprocessor's shared memory, of compute capability 9 (8.0: 164 KiB), and what each thread
// block needs beside its own; and thread blocks of 128 threads whose registers it has.
constexpr int kMultiprocessorBytes = 227 * 1024;
constexpr int kReservedBytes = 2 * 1024;
constexpr int kMaxResident = 4;

std::int64_t ResidentBlocks(std::int64_t head_size, int stages) {
  const int bytes = DecodeSharedBytes(static_cast<int>(head_size), stages) + kReservedBytes;
  return std::clamp(kMultiprocessorBytes / bytes, 1, kMaxResident);
}

Status CheckDecodePlan(const AttentionDecodeArgs& args) {
  if (args.plan.splits < 1 || args.plan.splits > kMaxDecodeSplits) {
    return WrongNumber(kDecodeOp, "plan.splits", args.plan.splits, "1 to 256");
  }
  FERRY_TRY(CheckStages(DecodeArgument("q", args.q), "plan.stages", args.plan.stages));
  const bool narrow = args.k_cache.dtype == DType::kFloat8E4m3;
  if (args.plan.stages != 2 && (narrow || args.window > 0 || args.softcap > 0)) {
    return WrongNumber(kDecodeOp, "plan.stages", args.plan.stages,
                       "2 for e4m3 caches and with a window or a softcap");
  }
  return Ok();
}

AttentionScales DecodeScalesOf(const AttentionDecodeArgs& args) {
  return {args.scale, args.k_scale, args.v_scale};
}

Status IsApartFromWhatIsRead(const Argument& written, const AttentionDecodeArgs& args) {
  for (const auto& [name, tensor] :
       {std::pair("q", &args.q), std::pair("k_cache", &args.k_cache),
        std::pair("v_cache", &args.v_cache), std::pair("block_tables", &args.block_tables),
        std::pair("context_lens", &args.context_lens), std::pair("sinks", &args.sinks)}) {
    FERRY_TRY(written.IsApartFrom(DecodeArgument(name, *tensor)));
  }
  return Ok();
}

Status CheckDecodeWorkspace(const AttentionDecodeArgs& args) {
  const std::int64_t floats = DecodeWorkspace(ShapeOf(args), args.plan.splits);
  if (floats == 0) return Ok();
  const Argument workspace = DecodeArgument("workspace", args.workspace);
  FERRY_TRY(workspace.IsView(1, 1));
  FERRY_TRY(workspace.HasType({DType::kFloat32}));
  FERRY_TRY(workspace.IsContiguous());
  FERRY_TRY(IsAlignedForDevice(workspace));
  if (args.workspace.last() < floats) {
    return workspace.Wrong(fmt::format("[{}] or more, for {} parts", floats, args.plan.splits));
  }
  FERRY_TRY(workspace.IsApartFrom(DecodeArgument("out", args.out)));
  FERRY_TRY(workspace.IsApartFrom(DecodeArgument("lse", args.lse)));
  return IsApartFromWhatIsRead(workspace, args);
}

}  // namespace

DecodeShape ShapeOf(const AttentionDecodeArgs& args) noexcept {
  std::int64_t tokens = args.block_tables.shape[1] * args.k_cache.shape[1];
  // A window may begin and end within a step.
  if (args.window > 0) tokens = std::min(tokens, args.window + kDecodeStep);
  return {.batch = args.q.shape[0],
          .heads = args.q.shape[1],
          .kv_heads = args.k_cache.shape[2],
          .head_size = args.q.shape[2],
          .most_tokens = tokens};
}

float ScoreScaleOf(const AttentionDecodeArgs& args) noexcept {
  return ScoreScaleOf(DecodeScalesOf(args), args.k_cache.dtype);
}

std::int64_t DecodeWorkspace(const DecodeShape& shape, int splits) noexcept {
  if (splits <= 1) return 0;
  // For each part of each head: head_size floats of output, and its base and sum.
  constexpr std::int64_t kOfSum = 2;  // float2
  return shape.batch * shape.heads * splits * (shape.head_size + kOfSum);
}

// The lengths lie in GPU memory, and the launch must not depend on them, or a captured graph could
// not be replayed for other lengths. So the plan assumes sequences of most_tokens. It simulates the
// waves of thread blocks for each number of parts and takes the fewest parts that are nearly the
// fastest.
DecodePlan PlanDecode(const DecodeShape& shape, const cuda::DeviceFacts& facts) noexcept {
  DecodePlan plan{.splits = 1, .stages = 2, .early = facts.compute_major >= 9};
  if (shape.batch < 1 || shape.kv_heads < 1 || shape.heads < shape.kv_heads) return plan;
  const std::int64_t blocks =
      shape.batch * shape.kv_heads * DecodeRowTiles(shape.heads / shape.kv_heads);
  const std::int64_t slots =
      std::max(facts.multiprocessors, 1) * ResidentBlocks(shape.head_size, plan.stages);
  const std::int64_t steps = (shape.most_tokens + kDecodeStep - 1) / kDecodeStep;
  const std::int64_t most = std::clamp<std::int64_t>(steps, 1, kMaxDecodeSplits);
  // Time, in steps: of each wave, what its parts take, and what they take to begin and to end.
  constexpr std::int64_t kAround = 2;
  const auto time = [&](std::int64_t splits) {
    const std::int64_t waves = (blocks * splits + slots - 1) / slots;
    const std::int64_t each = (steps + splits - 1) / splits;
    return static_cast<double>(waves * (each + kAround));
  };
  double best = time(1);
  for (std::int64_t splits = 2; splits <= most; ++splits) best = std::min(best, time(splits));
  // A part more is a part more to put together, so the least that is nearly as good.
  constexpr double kNearly = 1.05;
  while (time(plan.splits) > kNearly * best) ++plan.splits;
  return plan;
}

Status CheckAttentionDecode(const AttentionDecodeArgs& args) {
  const Argument q = DecodeArgument("q", args.q);
  const Argument out = DecodeArgument("out", args.out);
  const Argument lengths = DecodeArgument("context_lens", args.context_lens);
  FERRY_TRY(q.IsView(3, 3));
  FERRY_TRY(q.HasType(kFloats));
  FERRY_TRY(q.HasDenseRows());
  FERRY_TRY(CheckPages(q, DecodeArgument("k_cache", args.k_cache),
                       DecodeArgument("v_cache", args.v_cache), KeyTypes::kOfQueriesOrE4m3));
  FERRY_TRY(CheckBlockTables(DecodeArgument("block_tables", args.block_tables), args.q.shape[0],
                             args.k_cache.shape[1]));
  FERRY_TRY(lengths.IsView(1, 1));
  FERRY_TRY(lengths.HasType({DType::kInt32}));
  FERRY_TRY(lengths.HasShape({args.q.shape[0]}, "a length for each sequence"));
  FERRY_TRY(CheckAttentionOut(q, out));
  FERRY_TRY(IsApartFromWhatIsRead(out, args));
  FERRY_TRY(CheckScales(kDecodeOp, DecodeScalesOf(args), args.k_cache.dtype));
  FERRY_TRY(CheckExtras(q, {args.lse, args.sinks, args.window, args.softcap}, ScoreScaleOf(args)));
  if (!args.lse.none()) {
    FERRY_TRY(IsApartFromWhatIsRead(DecodeArgument("lse", args.lse), args));
    FERRY_TRY(out.IsApartFrom(DecodeArgument("lse", args.lse)));
  }
  return CheckDecodePlan(args);
}

Status CheckAttentionDecodeForDevice(const AttentionDecodeArgs& args) {
  const Argument q = DecodeArgument("q", args.q);
  FERRY_TRY(CheckHeadsForDevice(q));
  for (const auto& [name, tensor] :
       {std::pair("q", &args.q), std::pair("k_cache", &args.k_cache),
        std::pair("v_cache", &args.v_cache), std::pair("out", &args.out)}) {
    FERRY_TRY(IsAlignedForDevice(DecodeArgument(name, *tensor)));
  }
  const DecodeShape shape = ShapeOf(args);
  if (shape.batch * shape.heads * args.plan.splits > std::numeric_limits<std::int32_t>::max()) {
    return q.Wrong("of fewer heads in all: with the parts they are more than a grid has");
  }
  constexpr std::int64_t kMaxGridRows = 65535;
  if (shape.heads > kMaxGridRows) return q.Wrong("of at most 65535 heads");
  return CheckDecodeWorkspace(args);
}

#ifdef FERRY_HAVE_CUDA
Status LaunchAttentionDecode(const AttentionDecodeArgs& args, cuda::StreamRef stream);

Status AttentionDecode(const AttentionDecodeArgs& args, cuda::StreamRef stream) {
  FERRY_TRY(CheckAttentionDecode(args));
  FERRY_TRY(CheckAttentionDecodeForDevice(args));
  if (args.q.Numel() == 0) return Ok();
  return LaunchAttentionDecode(args, stream);
}
#else
Status AttentionDecode(const AttentionDecodeArgs& args, cuda::StreamRef /*stream*/) {
  FERRY_TRY(CheckAttentionDecode(args));
  FERRY_TRY(CheckAttentionDecodeForDevice(args));
  return NoDeviceCode(kDecodeOp);
}
#endif

const cuda::Kernel kAttentionDecodeKernel =
    MakeKernel<AttentionDecode, AttentionDecodeCpu, &AttentionDecodeArgs::q,
               &AttentionDecodeArgs::k_cache, &AttentionDecodeArgs::v_cache,
               &AttentionDecodeArgs::block_tables, &AttentionDecodeArgs::context_lens,
               &AttentionDecodeArgs::out, &AttentionDecodeArgs::lse, &AttentionDecodeArgs::sinks>(
        kDecodeOp);

}  // namespace ferry::kernels
