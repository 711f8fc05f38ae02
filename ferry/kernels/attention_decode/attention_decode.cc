#include "ferry/kernels/attention_decode/attention_decode.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "ferry/cuda/address.h"
#include "ferry/kernels/argument.h"
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
constexpr int kMostResident = 4;

std::int64_t ResidentBlocks(std::int64_t head_size, int stages) {
  const int bytes = DecodeSharedBytes(static_cast<int>(head_size), stages) + kReservedBytes;
  return std::clamp(kMultiprocessorBytes / bytes, 1, kMostResident);
}

Status CheckDecodeCaches(const AttentionDecodeArgs& args) {
  const Argument q = DecodeArgument("q", args.q);
  const Argument k = DecodeArgument("k_cache", args.k_cache);
  const Argument v = DecodeArgument("v_cache", args.v_cache);
  for (const Argument& cache : {k, v}) {
    FERRY_TRY(cache.IsView(4, 4));
    FERRY_TRY(cache.HasTypeOf(q));
    FERRY_TRY(cache.HasDenseRows());
  }
  const std::int64_t block = args.k_cache.shape[1];
  const std::int64_t kv_heads = args.k_cache.shape[2];
  if (block < 16 || block > 256 || block % 16 != 0) {
    return k.Wrong("[blocks, 16 to 256 tokens, a multiple of 16, kv_heads, head_size]");
  }
  if (args.k_cache.shape[3] != args.q.last()) {
    return k.Wrong(fmt::format("of heads of {}, as q is", args.q.last()));
  }
  if (kv_heads < 1 || args.q.shape[1] % kv_heads != 0) {
    return k.Wrong(
        fmt::format("of a number of heads that q's {} are a multiple of", args.q.shape[1]));
  }
  if (args.k_cache.shape[0] > std::numeric_limits<std::int32_t>::max()) {
    return k.Wrong("of no more blocks than an int32 can name");
  }
  return v.HasShapeOf(k);
}

Status CheckDecodeTables(const AttentionDecodeArgs& args) {
  const std::int64_t batch = args.q.shape[0];
  const Argument tables = DecodeArgument("block_tables", args.block_tables);
  const Argument lengths = DecodeArgument("context_lens", args.context_lens);
  FERRY_TRY(tables.IsView(2, 2));
  FERRY_TRY(tables.HasType({DType::kInt32}));
  FERRY_TRY(tables.HasDenseRows());
  FERRY_TRY(tables.HasShape({batch, args.block_tables.shape[1]}, "a row for each sequence of q"));
  if (args.block_tables.shape[1] * args.k_cache.shape[1] >
      std::numeric_limits<std::int32_t>::max()) {
    return tables.Wrong("of no more tokens than an int32 can count");
  }
  FERRY_TRY(lengths.IsView(1, 1));
  FERRY_TRY(lengths.HasType({DType::kInt32}));
  return lengths.HasShape({batch}, "a length for each sequence of q");
}

Status CheckDecodePlan(const AttentionDecodeArgs& args) {
  const DecodePlan& plan = args.plan;
  if (plan.splits < 1 || plan.splits > kMostDecodeSplits) {
    return WrongNumber(kDecodeOp, "plan.splits", plan.splits, "1 to 256");
  }
  if (plan.stages < 1 || plan.stages > 3) {
    return WrongNumber(kDecodeOp, "plan.stages", plan.stages, "1, 2 or 3");
  }
  return Ok();
}

Status IsAlignedForDevice(const Argument& argument) {
  const Tensor& tensor = argument.tensor;
  const std::int64_t size = SizeOf(tensor.dtype);
  bool aligned = cuda::AddressOf(tensor.data) % 16 == 0;
  for (int d = 0; d + 1 < tensor.rank; ++d) {
    const auto at = static_cast<std::size_t>(d);
    aligned = aligned && (tensor.shape[at] <= 1 || tensor.stride[at] * size % 16 == 0);
  }
  if (aligned) return Ok();
  return argument.Wrong("at an address, and have strides, that are multiples of 16 bytes");
}

}  // namespace

DecodeShape ShapeOf(const AttentionDecodeArgs& args) noexcept {
  return {.batch = args.q.shape[0],
          .heads = args.q.shape[1],
          .kv_heads = args.k_cache.shape[2],
          .head_size = args.q.shape[2],
          .most_tokens = args.block_tables.shape[1] * args.k_cache.shape[1]};
}

std::int64_t DecodeWorkspace(const DecodeShape& shape, int splits) noexcept {
  if (splits <= 1) return 0;
  constexpr std::int64_t kOfSum = 2;  // float2
  return shape.batch * shape.heads * splits * (shape.head_size + kOfSum);
}

DecodePlan PlanDecode(const DecodeShape& shape, const cuda::DeviceFacts& facts) noexcept {
  DecodePlan plan{.splits = 1, .stages = 2, .early = facts.compute_major >= 9};
  if (shape.batch < 1 || shape.kv_heads < 1 || shape.heads < shape.kv_heads) return plan;
  const std::int64_t blocks =
      shape.batch * shape.kv_heads * DecodeRowTiles(shape.heads / shape.kv_heads);
  const std::int64_t slots =
      std::max(facts.multiprocessors, 1) * ResidentBlocks(shape.head_size, plan.stages);
  const std::int64_t steps = (shape.most_tokens + kDecodeStep - 1) / kDecodeStep;
  const std::int64_t most = std::clamp<std::int64_t>(steps, 1, kMostDecodeSplits);
  // Time, in steps: of each wave, what its parts take, and what they take to begin and to end.
  constexpr std::int64_t kAround = 2;
  const auto time = [&](std::int64_t splits) {
    const std::int64_t waves = (blocks * splits + slots - 1) / slots;
    return static_cast<double>(waves * ((steps + splits - 1) / splits + kAround));
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
  FERRY_TRY(q.IsView(3, 3));
  FERRY_TRY(q.HasType(kFloats));
  FERRY_TRY(q.HasDenseRows());
  FERRY_TRY(CheckDecodeCaches(args));
  FERRY_TRY(CheckDecodeTables(args));
  FERRY_TRY(out.IsView(3, 3));
  FERRY_TRY(out.HasTypeOf(q));
  FERRY_TRY(out.HasShapeOf(q));
  FERRY_TRY(out.HasDenseRows());
  FERRY_TRY(out.IsWritable());
  for (const auto& [name, tensor] :
       {std::pair("q", &args.q), std::pair("k_cache", &args.k_cache),
        std::pair("v_cache", &args.v_cache), std::pair("block_tables", &args.block_tables),
        std::pair("context_lens", &args.context_lens)}) {
    FERRY_TRY(out.IsApartFrom(DecodeArgument(name, *tensor)));
  }
  if (!(args.scale > 0) || !std::isfinite(args.scale)) {
    return WrongNumber(kDecodeOp, "scale", args.scale, "a number above 0");
  }
  return CheckDecodePlan(args);
}

Status CheckAttentionDecodeForDevice(const AttentionDecodeArgs& args) {
  const Argument q = DecodeArgument("q", args.q);
  const std::int64_t head_size = args.q.last();
  if (args.q.dtype == DType::kFloat32 ||
      (head_size != 64 && head_size != 128 && head_size != 256)) {
    return Error(Code::kUnsupported,
                 fmt::format("{}: q is {}; the GPU's form has bf16 and fp16 with heads of 64, 128 "
                             "and 256, use the CPU's",
                             kDecodeOp, ToString(args.q)));
  }
  if (head_size != 128 && args.plan.stages != 2) {
    return WrongNumber(kDecodeOp, "plan.stages", args.plan.stages, "2 for heads of 64 and 256");
  }
  for (const auto& [name, tensor] :
       {std::pair("q", &args.q), std::pair("k_cache", &args.k_cache),
        std::pair("v_cache", &args.v_cache), std::pair("out", &args.out)}) {
    FERRY_TRY(IsAlignedForDevice(DecodeArgument(name, *tensor)));
  }
  const DecodeShape shape = ShapeOf(args);
  if (shape.batch * shape.heads * args.plan.splits > std::numeric_limits<std::int32_t>::max()) {
    return q.Wrong("of fewer heads in all: with the parts they are more than a grid has");
  }
  constexpr std::int64_t kMostGridRows = 65535;
  if (shape.kv_heads * DecodeRowTiles(shape.heads / shape.kv_heads) > kMostGridRows) {
    return q.Wrong("of at most 65535 heads");
  }
  const std::int64_t floats = DecodeWorkspace(shape, args.plan.splits);
  if (floats == 0) return Ok();
  const Argument workspace = DecodeArgument("workspace", args.workspace);
  FERRY_TRY(workspace.IsView(1, 1));
  FERRY_TRY(workspace.HasType({DType::kFloat32}));
  FERRY_TRY(workspace.IsContiguous());
  FERRY_TRY(IsAlignedForDevice(workspace));
  if (args.workspace.last() < floats) {
    return workspace.Wrong(fmt::format("[{}] or more, for {} parts", floats, args.plan.splits));
  }
  return Ok();
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
               &AttentionDecodeArgs::out>(kDecodeOp);

}  // namespace ferry::kernels
