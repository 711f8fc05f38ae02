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

// How the work is divided: the result of PlanDecode(), or the caller's own choice.
struct DecodePlan {
  // Number of parts of each sequence. Each part has its own thread block, and a second kernel
  // merges them. Lengths are read on the device, so the parts of a short sequence are short or
  // empty.
  int splits = 1;
  // Buffers for tiles of K and V in shared memory: 1, 2 or 3; 2 for heads of 64 and 256, for e4m3
  // caches, and with a window or a softcap.
  int stages = 2;
  // Launches the second kernel with programmatic dependent launch, so that it may start while the
  // first one ends. Needs compute capability 9; ignored elsewhere.
  bool early = false;
  friend bool operator==(const DecodePlan&, const DecodePlan&) = default;
};
inline constexpr int kMaxDecodeSplits = 256;

struct DecodeShape {
  std::int64_t batch = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_size = 0;
  // Tokens of the longest expected sequence, at most max_blocks * block. A graph captured once
  // serves all lengths up to this.
  std::int64_t most_tokens = 0;
};

// Chooses the smallest number of parts that keeps the GPU's multiprocessors about as busy as any
// other number would.
DecodePlan PlanDecode(const DecodeShape& shape, const cuda::DeviceFacts& facts) noexcept;
// Number of floats that AttentionDecodeArgs::workspace must have; 0 for one part.
std::int64_t DecodeWorkspace(const DecodeShape& shape, int splits) noexcept;

struct AttentionDecodeArgs {
  // [batch, heads, head_size]; fp32, bf16 or fp16, as all of q, k_cache, v_cache and out. Here and
  // below the last stride is 1 and the others are free.
  Tensor q;
  // [blocks, block, kv_heads, head_size]; heads is a multiple of kv_heads. Blocks of multiples of
  // 16 tokens are read fastest. Both caches may be e4m3 instead, whose numbers are worth k_scale
  // and v_scale times themselves, as StoreKvCache() stores them.
  Tensor k_cache;
  Tensor v_cache;
  // int32 [batch, max_blocks]. Entries beyond those that context_lens[b] needs are not read, nor
  // those of which a window sees no token, whose blocks engines release; by convention both are -1.
  Tensor block_tables;
  // int32 [batch], 0 to max_blocks * block. For 0, as used for padding, the row of out is zeros.
  Tensor context_lens;
  // [batch, heads, head_size]; shares no memory with the others.
  Tensor out;
  // fp32 [DecodeWorkspace()] or more, contiguous; none for one part. Its contents before and after
  // a call are unspecified; it overlaps no other argument. Calls may share one workspace if a
  // stream or an event orders them. The CPU form does not touch it.
  Tensor workspace;
  float scale = 0;  // > 0
  DecodePlan plan;
  float k_scale = 1;  // > 0; used where the caches are e4m3
  float v_scale = 1;
  // fp32 [batch, heads], any strides, or none: receives the natural logarithm of the sum of
  // exp(score) of each head, -inf where there are no scores. A sink counts as a score.
  Tensor lse = {};
  // fp32 [heads], contiguous, or none: a score of each head that has no key and no value, and only
  // takes its part of the weights (Xiao et al. 2023, Efficient Streaming Language Models).
  Tensor sinks = {};
  // A query sees only the last so many tokens of its sequence; 0: all.
  std::int64_t window = 0;
  // Scores s become softcap * tanh(s / softcap), as in Gemma 2; 0: they stay as they are. At most
  // 2.3e38, and scale / softcap is neither 0 nor infinite in fp32.
  float softcap = 0;
};

// On the GPU: bf16 and fp16, heads of 64, 128 and 256, addresses and strides that are multiples of
// 16 bytes. Sums in float; weights are rounded to the format of v before they meet it, as
// FlashAttention-2 does. It reads nothing out of bounds whatever lengths and tables have: a
// sequence that is too long is truncated to max_blocks * block, and an invalid block counts as
// zeros. K and V are read once for each 16 heads of a group.
//
// NaN and infinite values beyond a sequence's end and in invalid blocks never affect the result. A
// value that is NaN or infinite where its token's weight is 0 or has been rounded to it gives NaN,
// as 0 * NaN is, here and in FlashAttention-2.
//
// Errors: kInvalidArgument; kUnsupported for cases that only the CPU form supports, and if a thread
// block of this GPU has too little shared memory: heads of 256, and of 128 with 3 stages, need more
// than the 99 KiB that there are for compute capability 8.6, 8.9 and 12.
Status AttentionDecode(const AttentionDecodeArgs& args, cuda::StreamRef stream);

// In double, rounded once, any head size. Errors: kInvalidArgument, also for lengths and blocks out
// of bounds.
Status AttentionDecodeCpu(const AttentionDecodeArgs& args);

extern const cuda::Kernel kAttentionDecodeKernel;

// Checks the requirements of both forms, and the additional ones of the GPU form. Errors: as the
// forms.
Status CheckAttentionDecode(const AttentionDecodeArgs& args);
Status CheckAttentionDecodeForDevice(const AttentionDecodeArgs& args);
DecodeShape ShapeOf(const AttentionDecodeArgs& args) noexcept;
// What <q, k> is multiplied by: scale, and k_scale where the caches are e4m3.
float ScoreScaleOf(const AttentionDecodeArgs& args) noexcept;

}  // namespace ferry::kernels
