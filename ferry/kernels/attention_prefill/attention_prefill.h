// Prefill attention: its arguments, forms and tile sizes.
#pragma once
#include <cstdint>

#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/kernels/tensor.h"

// Attention of many tokens of many sequences of different lengths:
//
//   out[i, h] = sum_t p_t * v[t, g],  p = softmax over t of scale * <q[i, h], k[t, g]>
//
// (Vaswani et al. 2017, eq. 1), g = h / (heads / kv_heads), over the keys t of the same sequence,
// of which a causal query sees those that are not behind it. A sequence's last query stands at its
// last key, as in FlashAttention 2: query i of m sees the keys t <= i + n - m of n, so that queries
// can follow a prefix whose keys are there already. A query that sees no key gives zeros.
namespace ferry::kernels {

// The implementation on the GPU.
enum class PrefillForm : std::uint8_t {
  kAuto,  // kWgmmaSm90 if device, build and arguments support it
  // Copies by each thread (cp.async), and products by each warp: compute capability 8 and later.
  kCpAsync,
  // Copies by the copy engine (TMA), and products by warpgroups (wgmma): compute capability 9.0, in
  // builds for 90a. Without lse, sinks, window and softcap, for keys of the type of q, and for
  // pages of multiples of 16 tokens.
  kWgmmaSm90,
};

// What a plan goes by: the sizes of a call, of which the GPU alone knows the lengths.
struct PrefillWork {
  std::int64_t batch = 0;
  std::int64_t queries = 0;  // of all sequences
  std::int64_t max_seqlen_q = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_size = 0;
  // Keys of the longest expected sequence. A graph captured once serves all lengths up to this.
  std::int64_t most_keys = 0;
};
// Number of parts of each sequence's keys that keeps the GPU's multiprocessors about as busy as any
// other would: 1 where there are queries enough, and on GPUs without the form kWgmmaSm90.
int PlanPrefill(const PrefillWork& work, const cuda::DeviceFacts& facts) noexcept;
// Number of floats that AttentionPrefillArgs::workspace must have; 0 for one part.
std::int64_t PrefillWorkspace(const PrefillWork& work, int splits) noexcept;
inline constexpr int kMaxPrefillSplits = 256;

struct AttentionPrefillArgs {
  // [all queries, heads, head_size]; fp32, bf16 or fp16, as all of q, k, v and out. Here and below
  // the last stride is 1 and the others are free.
  Tensor q;
  // Without block_tables [all keys, kv_heads, head_size]. With them pages,
  // [blocks, block, kv_heads, head_size], of which blocks of multiples of 16 tokens are read
  // fastest. heads is a multiple of kv_heads. Both may be e4m3 instead, whose numbers are worth
  // k_scale and v_scale times themselves, as StoreKvCache() stores them.
  Tensor k;
  Tensor v;
  // int32 [batch + 1]: sequence b has the queries, and the keys, from entry b on to before entry
  // b + 1. The first entry is 0 and none is less than the one before.
  Tensor cu_seqlens_q;
  Tensor cu_seqlens_k;
  // int32 [batch, max_blocks], or none: the pages of each sequence's keys. Entries beyond those
  // that it needs are not read, nor those of which the first query's window sees no key, whose
  // blocks engines release; by convention both are -1.
  Tensor block_tables;
  // [all queries, heads, head_size]; shares no memory with the others. Rows beyond the last
  // sequence are not written.
  Tensor out;
  // At least the length of the longest sequence, in queries: the GPU form skips queries beyond it.
  std::int64_t max_seqlen_q = 0;
  float scale = 0;  // > 0
  bool causal = true;
  // Buffers for tiles of K and V in shared memory: 1, 2 or 3; 2 for heads of 64 and 256. With one,
  // nothing is copied while a thread block computes; with n, the next n - 1 tiles are. The form
  // kWgmmaSm90 always uses 2, and so do calls with any of the following up to softcap, for e4m3
  // keys, and for pages that are not multiples of 16 tokens.
  int stages = 2;
  PrefillForm form = PrefillForm::kAuto;
  // fp32 [all queries, heads], any strides, or none: receives the natural logarithm of the sum of
  // exp(score) of each query's head, -inf where there are no scores. A sink counts as a score.
  Tensor lse = {};
  // fp32 [heads], contiguous, or none: a score of each head that has no key and no value, and only
  // takes its part of the weights (Xiao et al. 2023, Efficient Streaming Language Models).
  Tensor sinks = {};
  // A query sees only so many keys up to the one at which it stands, its own included, and, if not
  // causal, those behind it; 0: all.
  std::int64_t window = 0;
  // Scores s become softcap * tanh(s / softcap), as in Gemma 2; 0: they stay as they are. At most
  // 2.3e38, and scale / softcap is neither 0 nor infinite in fp32.
  float softcap = 0;
  // Parts of each sequence's keys, 1 to 256. Each part has its own thread blocks, and a second
  // kernel merges them. For sequences of few queries over many keys: PlanPrefill(). The form
  // kCpAsync, which calls with any of the above or with e4m3 keys take, always has one part.
  int splits = 1;
  // fp32 [PrefillWorkspace()] or more, contiguous; none for one part. Its contents before and after
  // a call are unspecified; it overlaps no other argument. The CPU form does not touch it.
  Tensor workspace = {};
  float k_scale = 1;  // > 0; used where k and v are e4m3
  float v_scale = 1;
};

// On the GPU: bf16 and fp16, heads of 64, 128 and 256, addresses and strides that are multiples of
// 16 bytes. Sums in float; weights are rounded to the format of v before they meet it, as
// FlashAttention-2 does. It reads nothing out of bounds whatever lengths and tables have: sequences
// are cut where their tensors or pages end, an invalid page counts as zeros.
//
// NaN and infinite values beyond a sequence's end never affect the result. But a query that must
// not see a key of its own sequence gives it a weight of 0, where both are in one tile, and 0 times
// a value that is NaN or infinite is NaN, here and in FlashAttention-2.
//
// Errors: kInvalidArgument; kUnsupported for cases that only the CPU form supports, and if a thread
// block of this GPU has too little shared memory: heads of 128 with 3 stages need more than the 99
// KiB that there are for compute capability 8.6, 8.9 and 12. The form kWgmmaSm90:
// kInvalidArgument for lse, sinks, window or softcap, for e4m3 keys, for other pages, and for
// strides that a tensor map cannot have; kUnsupported on other GPUs and in other builds.
Status AttentionPrefill(const AttentionPrefillArgs& args, cuda::StreamRef stream);

// In double, rounded once, any head size. Errors: kInvalidArgument, also for lengths and pages out
// of bounds.
Status AttentionPrefillCpu(const AttentionPrefillArgs& args);

extern const cuda::Kernel kAttentionPrefillKernel;

// Checks the requirements of both forms, and the additional ones of the GPU form. Errors: as the
// forms.
Status CheckAttentionPrefill(const AttentionPrefillArgs& args);
Status CheckAttentionPrefillForDevice(const AttentionPrefillArgs& args);
// Selects the form for arguments that have been checked; never returns kAuto. `has_wgmma_sm90`
// tells whether device and build support that form. Errors: the requested form does not support the
// arguments or the device.
Result<PrefillForm> PrefillFormOf(const AttentionPrefillArgs& args, bool has_wgmma_sm90);
// What PlanPrefill() goes by, of arguments that need not have been checked: no keys at all where
// they are for a form without parts.
PrefillWork WorkOf(const AttentionPrefillArgs& args) noexcept;
// Whether the plain kernels, and kWgmmaSm90, can do it: without lse, sinks, window and softcap, for
// keys of the type of q, and for pages of multiples of 16 tokens.
bool IsPlain(const AttentionPrefillArgs& args) noexcept;
// What <q, k> is multiplied by: scale, and k_scale where the keys are e4m3.
float ScoreScaleOf(const AttentionPrefillArgs& args) noexcept;

// Tokens per page; 0 if keys are not paged.
inline std::int64_t PageTokens(const AttentionPrefillArgs& args) noexcept {
  return args.block_tables.none() ? 0 : args.k.shape[1];
}
inline std::int64_t KvHeads(const AttentionPrefillArgs& args) noexcept {
  return args.block_tables.none() ? args.k.shape[1] : args.k.shape[2];
}

// How the work is divided, by head size: warps of a thread block, queries of each warp, and keys of
// a tile.
struct PrefillTiles {
  int warps;
  int row_tiles;  // of 16 queries, for each warp
  int keys;
};
#ifdef __CUDACC__
__host__ __device__
#endif
    constexpr PrefillTiles
    PrefillTilesOf(int head_size) noexcept {
  // A warp's outputs are head_size * row_tiles / 4 of its threads' 255 registers, its scores
  // keys * row_tiles / 4: so the longest heads leave room for one row tile. Two read K and V half
  // as often. With 48 keys, not 64, two thread blocks with heads of 128 and three stages fit into
  // the shared memory that a multiprocessor of compute capability 9 has.
  if (head_size <= 64) return {.warps = 4, .row_tiles = 2, .keys = 64};
  if (head_size <= 128) return {.warps = 4, .row_tiles = 2, .keys = 48};
  return {.warps = 4, .row_tiles = 1, .keys = 32};
}

// The division of work of the form kWgmmaSm90. Queries of a thread block, of all its heads:
inline constexpr int kWgmmaSm90Rows = 128;
// Heads of a thread block: more than one, all `group` that share K and V, where sequences of up to
// so many queries need fewer thread blocks so, each of which reads its K and V.
int PrefillTileHeads(std::int64_t max_seqlen_q, int group) noexcept;
struct WgmmaSm90Tiles {
  int groups;  // warpgroups that compute, each of 64 queries
  int keys;
  int stages;  // buffers for K, and as many for V
  // The warpgroups begin their products in turns, so that the softmax of one overlaps with the
  // products of the other.
  bool turns;
};
#ifdef __CUDACC__
__host__ __device__
#endif
    constexpr WgmmaSm90Tiles
    WgmmaSm90TilesOf(int head_size) noexcept {
  // A thread has 232 registers: head_size / 2 hold outputs, keys / 2 hold scores, and keys / 4 hold
  // the weights of the previous tile, which the tensor cores read meanwhile.
  if (head_size <= 128) return {.groups = 2, .keys = 128, .stages = 2, .turns = false};
  return {.groups = 2, .keys = 64, .stages = 2, .turns = false};
}

}  // namespace ferry::kernels
