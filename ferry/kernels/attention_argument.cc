// Implements the argument checks that both attention ops share.

#include "ferry/kernels/attention_argument.h"

#include <fmt/core.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "ferry/cuda/address.h"

namespace ferry::kernels {
namespace {

// A size, counted from the last, which is 0.
std::int64_t SizeFromEnd(const Tensor& tensor, int from_end) {
  return tensor.shape[static_cast<std::size_t>(tensor.rank - 1 - from_end)];
}

bool HasDeviceHeads(std::int64_t head_size) {
  return head_size == 64 || head_size == 128 || head_size == 256;
}

}  // namespace

Status CheckKeys(const Argument& q, const Argument& k, const Argument& v, KeyTypes types) {
  const bool narrow = types == KeyTypes::kOfQueriesOrE4m3 && k.tensor.dtype == DType::kFloat8E4m3;
  for (const Argument& keys : {k, v}) {
    FERRY_TRY(keys.HasTypeOf(narrow ? k : q));
    FERRY_TRY(keys.HasDenseRows());
  }
  if (k.tensor.last() != q.tensor.last()) {
    return k.Wrong(fmt::format("of heads of {}, as q is", q.tensor.last()));
  }
  const std::int64_t heads = SizeFromEnd(q.tensor, 1);
  const std::int64_t kv_heads = SizeFromEnd(k.tensor, 1);
  if (kv_heads < 1 || heads % kv_heads != 0) {
    return k.Wrong(fmt::format("of a number of heads that q's {} are a multiple of", heads));
  }
  return v.HasShapeOf(k);
}

Status CheckPages(const Argument& q, const Argument& k, const Argument& v, KeyTypes types) {
  FERRY_TRY(k.IsView(4, 4));
  FERRY_TRY(v.IsView(4, 4));
  const std::int64_t block = k.tensor.shape[1];
  if (block < 1 || block > kMaxTokens) {
    return k.Wrong("[blocks, 1 to 2^30 tokens, kv_heads, head_size]");
  }
  if (k.tensor.shape[0] > std::numeric_limits<std::int32_t>::max()) {
    return k.Wrong("of no more blocks than an int32 can name");
  }
  return CheckKeys(q, k, v, types);
}

Status CheckBlockTables(const Argument& tables, std::int64_t batch, std::int64_t block) {
  FERRY_TRY(tables.IsView(2, 2));
  FERRY_TRY(tables.HasType({DType::kInt32}));
  FERRY_TRY(tables.HasDenseRows());
  FERRY_TRY(tables.HasShape({batch, tables.tensor.shape[1]}, "a row for each sequence"));
  if (tables.tensor.shape[1] > kMaxTokens / block) return tables.Wrong("of at most 2^30 tokens");
  return Ok();
}

Status CheckAttentionOut(const Argument& q, const Argument& out) {
  FERRY_TRY(out.IsView(3, 3));
  FERRY_TRY(out.HasTypeOf(q));
  FERRY_TRY(out.HasShapeOf(q));
  FERRY_TRY(out.HasDenseRows());
  return out.IsWritable();
}

Status CheckScale(const char* op, float scale, const char* name) {
  // Kernels multiply by scale * log2(e); and a running maximum before the scale needs it positive.
  if (scale > 0 && std::isfinite(scale * kLog2E)) return Ok();
  return WrongNumber(op, name, scale, "a number above 0, and at most 2.3e38");
}

Status CheckScales(const char* op, const AttentionScales& scales, DType keys) {
  FERRY_TRY(CheckScale(op, scales.scale));
  if (keys != DType::kFloat8E4m3) return Ok();
  for (const auto& [name, scale] :
       {std::pair("k_scale", scales.k_scale), std::pair("v_scale", scales.v_scale)}) {
    if (!(scale > 0 && std::isfinite(scale))) {
      return WrongNumber(op, name, scale, "a finite number above 0");
    }
  }
  return CheckScale(op, ScoreScaleOf(scales, keys), "scale * k_scale");
}

Status CheckExtras(const Argument& q, const AttentionExtras& extras, float scale) {
  const std::int64_t heads = q.tensor.shape[1];
  if (!extras.lse.none()) {
    const Argument lse{q.op, "lse", extras.lse};
    FERRY_TRY(lse.IsView(2, 2));
    FERRY_TRY(lse.HasType({DType::kFloat32}));
    FERRY_TRY(lse.HasShape({q.tensor.shape[0], heads}, "one for each head of each query"));
    FERRY_TRY(lse.IsWritable());
    FERRY_TRY(lse.IsApartFrom(q));
  }
  if (!extras.sinks.none()) {
    const Argument sinks{q.op, "sinks", extras.sinks};
    FERRY_TRY(sinks.IsView(1, 1));
    FERRY_TRY(sinks.HasType({DType::kFloat32}));
    FERRY_TRY(sinks.HasShape({heads}, "one for each head of q"));
    FERRY_TRY(sinks.IsContiguous());
    if (!extras.lse.none()) FERRY_TRY(Argument({q.op, "lse", extras.lse}).IsApartFrom(sinks));
  }
  if (extras.window < 0 || extras.window > kMaxTokens) {
    return WrongNumber(q.op, "window", static_cast<double>(extras.window), "0 to 2^30");
  }
  if (extras.softcap == 0) return Ok();
  // Kernels multiply by scale / softcap, and then by softcap * log2(e).
  if (!(extras.softcap > 0 && std::isfinite(extras.softcap * kLog2E))) {
    return WrongNumber(q.op, "softcap", extras.softcap,
                       "0 for none, or a number above 0, and at most 2.3e38");
  }
  const float inner = scale / extras.softcap;
  if (inner > 0 && std::isfinite(inner)) return Ok();
  return Error(Code::kInvalidArgument,
               fmt::format("{}: scale / softcap is {}, with a scale of {} and a softcap of {}; it "
                           "must be above 0 and finite in fp32",
                           q.op, inner, scale, extras.softcap));
}

Status CheckStages(const Argument& q, const char* name, int stages) {
  constexpr int kMaxStages = 3;
  if (stages < 1 || stages > kMaxStages) return WrongNumber(q.op, name, stages, "1, 2 or 3");
  const std::int64_t head_size = q.tensor.last();
  if (stages != 2 && HasDeviceHeads(head_size) && head_size != 128) {
    return WrongNumber(q.op, name, stages, "2 for heads of 64 and 256");
  }
  return Ok();
}

Status CheckHeadsForDevice(const Argument& q) {
  if (q.tensor.dtype != DType::kFloat32 && HasDeviceHeads(q.tensor.last())) return Ok();
  return Error(Code::kUnsupported,
               fmt::format("{}: q is {}; the GPU's form has bf16 and fp16 with heads of 64, 128 "
                           "and 256, use the CPU's",
                           q.op, ToString(q.tensor)));
}

Status IsAlignedForDevice(const Argument& argument) {
  const Tensor& tensor = argument.tensor;
  constexpr std::int64_t kAlignment = 16;
  const std::int64_t size = SizeOf(tensor.dtype);
  bool aligned = cuda::AddressOf(tensor.data) % kAlignment == 0;
  for (std::size_t d = 0; d + 1 < static_cast<std::size_t>(tensor.rank); ++d) {
    aligned = aligned && (tensor.shape[d] <= 1 || tensor.stride[d] * size % kAlignment == 0);
  }
  if (aligned) return Ok();
  return argument.Wrong(fmt::format(
      "at an address, and have strides, that are multiples of 16 bytes; it is at {}", tensor.data));
}

}  // namespace ferry::kernels
