// Decode attention: its arguments, plan and both forms.
#pragma once
#include <cstdint>

#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/kernels/tensor.h"

// Attention of one new token for each sequence, over keys and values in a paged cache:
//
//   out[b, h] = sum_t p_t * v[t],  p = softmax over t < context_lens[b] of scale * <q[b, h], k[t]>
//
// (Vaswani et al. 2017, eq. 1), where k[t] is k_cache[block_tables[b, t / block], t % block, g],
// and g = h / (heads / kv_heads), as in grouped-query attention (Ainslie et al. 2023).
namespace ferry::kernels {

// How the work is dealt out: the result of PlanDecode(), or of who knows better.
struct DecodePlan {
  // Parts into which each sequence is cut, each for a thread block of its own; a second kernel puts
  // them together. Lengths are read on the device: the parts of a short sequence are short or
  // empty.
  int splits = 1;
  // Buffers for tiles of K and V in shared memory: 1, 2 or 3; 2 for heads of 64 and 256.
  int stages = 2;
  // The second kernel may come to the GPU while the first one ends. Needs compute capability 9, and
  // means nothing elsewhere.
  bool early = false;
  friend bool operator==(const DecodePlan&, const DecodePlan&) = default;
};
inline constexpr int kMostDecodeSplits = 256;

struct DecodeShape {
  std::int64_t batch = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_size = 0;
  // Of the longest sequence that may come, at most max_blocks * block. A graph is captured once for
  // all lengths up to this.
  std::int64_t most_tokens = 0;
};

// As few parts as keep the GPU's multiprocessors about as busy as any number would.
DecodePlan PlanDecode(const DecodeShape& shape, const cuda::DeviceFacts& facts) noexcept;
// Floats that AttentionDecodeArgs::workspace must have: 0 for one part.
std::int64_t DecodeWorkspace(const DecodeShape& shape, int splits) noexcept;

struct AttentionDecodeArgs {
  // [batch, heads, head_size]; fp32, bf16 or fp16, as all of q, k_cache, v_cache and out. Here and
  // below the last stride is 1 and the others are free.
  Tensor q;
  // [blocks, block, kv_heads, head_size]; heads is a multiple of kv_heads, block one of 16 up to
  // 256.
  Tensor k_cache;
  Tensor v_cache;
  // int32 [batch, max_blocks]. Entries behind those that context_lens[b] needs are not read: -1, by
  // custom.
  Tensor block_tables;
  // int32 [batch], 0 to max_blocks * block. 0: a row of zeros in out, as for padding.
  Tensor context_lens;
  // [batch, heads, head_size]; shares no memory with the others.
  Tensor out;
  // fp32 [DecodeWorkspace()] or more, contiguous; none for one part. What is in it before and after
  // means nothing; shares no memory with the others. Calls may have one and the same if they follow
  // each other in one stream, or wait for each other otherwise. The CPU form leaves it alone.
  Tensor workspace;
  float scale = 0;  // > 0
  DecodePlan plan;
};

// On the GPU: bf16 and fp16, heads of 64, 128 and 256, addresses and strides that are multiples of
// 16 bytes. Sums in float; weights are rounded to the format of v before they meet it, as
// FlashAttention-2 does. It reads nothing out of bounds whatever lengths and tables have: too long
// a sequence is cut at max_blocks * block, a block that is none counts as one of zeros. K and V are
// read once for each 16 heads of a group.
//
// NaN and infinite values of tokens behind a sequence's end, and of blocks that are none, are never
// seen. A value that is NaN or infinite where its token's weight is 0 or has been rounded to it
// gives NaN, as 0 * NaN is, here and in FlashAttention-2.
//
// Errors: kInvalidArgument; kUnsupported for what only the CPU form does, and for more shared
// memory than a thread block has on this GPU: heads of 256, and of 128 with 3 stages, need more
// than the 99 KiB that there are for compute capability 8.6, 8.9 and 12.
Status AttentionDecode(const AttentionDecodeArgs& args, cuda::StreamRef stream);

// In double, rounded once, any head size. Errors: kInvalidArgument, also for lengths and blocks out
// of bounds.
Status AttentionDecodeCpu(const AttentionDecodeArgs& args);

extern const cuda::Kernel kAttentionDecodeKernel;

// What both forms need; and what the GPU's needs beyond that.
Status CheckAttentionDecode(const AttentionDecodeArgs& args);
Status CheckAttentionDecodeForDevice(const AttentionDecodeArgs& args);
DecodeShape ShapeOf(const AttentionDecodeArgs& args) noexcept;

}  // namespace ferry::kernels
