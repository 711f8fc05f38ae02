// Kernels of decode attention: one thread block per part of a sequence, then a merge of the parts.

#include <cstdint>
#include <type_traits>

#include "ferry/cuda/launch.cuh"
#include "ferry/cuda/prim/grid_order.cuh"
#include "ferry/cuda/prim/pipeline.cuh"
#include "ferry/kernels/attention_argument.h"
#include "ferry/kernels/attention_decode/attention_decode.h"
#include "ferry/kernels/attention_decode/decode_layout.h"
#include "ferry/kernels/attention_end.cuh"
#include "ferry/kernels/attention_parts.cuh"
#include "ferry/kernels/attention_tile.cuh"
#include "ferry/kernels/e4m3_tile.cuh"

namespace ferry::kernels {
namespace {

// Strides in elements.
struct DecodeCache {
  const void* data;
  std::int64_t block_stride;
  std::int64_t token_stride;
  std::int64_t head_stride;
};

struct DecodeParameters {
  const void* q;
  std::int64_t q_batch_stride;
  std::int64_t q_head_stride;
  void* out;
  std::int64_t out_batch_stride;
  std::int64_t out_head_stride;
  DecodeCache k;
  DecodeCache v;
  const std::int32_t* tables;
  std::int64_t table_stride;
  const std::int32_t* lengths;
  std::int64_t length_stride;
  AttentionParts parts;  // rows: [batch, heads]
  int heads;
  int group;  // heads that share one of K and V
  int row_tiles;
  int block;
  bool scattered;  // a tile's tokens may lie in several blocks
  int blocks;
  int max_blocks;
  float scale;        // with log2(e); that of the tanh with a softcap
  float inner_scale;  // of the tanh's argument; 0: there is none
  float v_scale;
  int window;          // 0: none
  const float* sinks;  // null: none
  float* lse;          // null: not wanted
  std::int64_t lse_batch_stride;
  std::int64_t lse_head_stride;
};

// What a kernel does beyond plain attention over caches of the format of q.
enum class DecodeKind : std::uint8_t {
  kPlain,
  kMasked,  // window and softcap
  kE4m3,    // the same over e4m3 caches
};

// What a head's sum of weights times values is multiplied by, of weights with this base and sum.
// Keeps the lse where `keeps`.
__device__ __forceinline__ float EndHead(const DecodeParameters& given, int batch, int head,
                                         bool keeps, float base, float sum) {
  const RowEnd end = EndRow(base, sum, given.sinks == nullptr ? nullptr : given.sinks + head);
  if (keeps && given.lse != nullptr) {
    given.lse[batch * given.lse_batch_stride + head * given.lse_head_stride] = end.lse;
  }
  return end.factor * given.v_scale;
}

// Where a thread block is in the grid: parts first, then sequences; then row tiles of heads.
struct DecodePlace {
  int split;
  int batch;
  int kv_head;
  int first_head;  // of `rows` heads
  int rows;
  int length;       // of the sequence, no longer than its table can say
  int first_seen;   // token of the window
  int first_token;  // of this part
  int steps;        // of kDecodeStep tokens

  __device__ __forceinline__ explicit DecodePlace(const DecodeParameters& given) {
    split = static_cast<int>(blockIdx.x) % given.parts.splits;
    batch = static_cast<int>(blockIdx.x) / given.parts.splits;
    kv_head = static_cast<int>(blockIdx.y) / given.row_tiles;
    const int tile = static_cast<int>(blockIdx.y) % given.row_tiles;
    first_head = kv_head * given.group + tile * kDecodeRows;
    rows = min(kDecodeRows, given.group - tile * kDecodeRows);
    // Clamped here, since the host never sees the lengths: whatever they are, the table is read in
    // bounds.
    length = given.lengths[batch * given.length_stride];
    length = max(0, min(length, given.max_blocks * given.block));
    first_seen = given.window > 0 ? max(0, length - given.window) : 0;
    const int first_step = first_seen / kDecodeStep;
    const int all_steps = (length + kDecodeStep - 1) / kDecodeStep - first_step;
    // Parts of equal length. A short sequence leaves its last parts without steps; their largest
    // score stays -inf, which the merge takes for a weight of 0.
    const int each = (all_steps + given.parts.splits - 1) / given.parts.splits;
    first_token = (first_step + split * each) * kDecodeStep;
    steps = max(0, min(each, all_steps - split * each));
  }
};

// A tile of keys or values of the format of q, as DecodeLoader fills it.
template <class T, int kHead>
struct PlainTile {
  using Element = T;
  static constexpr int kBytes = prim::SharedTile<kDecodeKeys, kHead>::kBytes;

  std::uint8_t* data;

  __device__ __forceinline__ void Begin(int lane, const SourceRows<T>& rows) const {
    CopySixteen<prim::kWarpThreads>(prim::SharedTile<kDecodeKeys, kHead>{data}, 0, lane, rows);
  }
  template <class RowAt>
  __device__ __forceinline__ void BeginScattered(int lane, const T* some,
                                                 const RowAt& row_at) const {
    CopyScattered<prim::kWarpThreads>(prim::SharedTile<kDecodeKeys, kHead>{data}, 0, lane, some,
                                      row_at);
  }
};

// One warp's way through the part's tokens: 16 of each step are its own. The next tile's block is
// looked up one tile ahead, so that no copy waits for the table.
template <class Tile>
class DecodeLoader {
 public:
  using Element = typename Tile::Element;

  __device__ __forceinline__ DecodeLoader(const DecodeParameters& given, const DecodePlace& place,
                                          int warp, int lane)
      : given_(given),
        place_(place),
        table_(given.tables + place.batch * given.table_stride),
        warp_token_(place.first_token + warp * kDecodeKeys),
        lane_(lane),
        next_block_(BlockOf(0)) {}

  __device__ __forceinline__ int Token(int step) const { return warp_token_ + step * kDecodeStep; }

  // Tokens before first_seen are not read: whatever their memory has become, a weight of 0 times
  // NaN is NaN.
  __device__ __forceinline__ void Load(int step, int first_seen, const Tile& keys,
                                       const Tile& values) {
    const int block = next_block_;
    next_block_ = BlockOf(step + 1);
    const int token = Token(step);
    const int begin = max(0, first_seen - token);
    if (given_.scattered) {
      BeginScattered(keys, given_.k, block, token, begin);
      BeginScattered(values, given_.v, block, token, begin);
      return;
    }
    const int in_block = token % given_.block;
    // A block that is none is not read.
    const bool there = block >= 0 && block < given_.blocks;
    const int end = there ? place_.length - token : 0;
    const auto rows_of = [&](const DecodeCache& cache) {
      const Element* const first =
          static_cast<const Element*>(cache.data) + (there ? block : 0) * cache.block_stride +
          place_.kv_head * cache.head_stride + in_block * cache.token_stride;
      return SourceRows<Element>{first, cache.token_stride, end, begin};
    };
    keys.Begin(lane_, rows_of(given_.k));
    values.Begin(lane_, rows_of(given_.v));
  }

 private:
  // The block of a step's tokens; where they are scattered, that of token `lane` of the 16.
  __device__ __forceinline__ int BlockOf(int step) const {
    const int token = Token(step) + (given_.scattered ? lane_ % kDecodeKeys : 0);
    return token < place_.length ? table_[token / given_.block] : -1;
  }

  __device__ __forceinline__ void BeginScattered(const Tile& tile, const DecodeCache& cache,
                                                 int blocks, int token, int begin) {
    const Element* const base =
        static_cast<const Element*>(cache.data) + place_.kv_head * cache.head_stride;
    tile.BeginScattered(lane_, base, [&](int row) -> const Element* {
      const int block = __shfl_sync(prim::kAllLanes, blocks, row);
      const bool seen = row >= begin && token + row < place_.length;
      if (!seen || block < 0 || block >= given_.blocks) return nullptr;
      return base + block * cache.block_stride + (token + row) % given_.block * cache.token_stride;
    });
  }

  const DecodeParameters& given_;
  const DecodePlace& place_;
  const std::int32_t* const table_;
  const int warp_token_;
  const int lane_;
  int next_block_;
};

// A warp's result, where its ring was: rows of kHead floats. Words of 16 bytes change places, since
// rows begin in the same bank: half a warp writes at once two neighbouring words, of an even and an
// odd number, of each of four rows, which so are eight different ones.
template <int kHead>
__device__ __forceinline__ void* OutAt(std::uint8_t* warp_shared, int row, int column) {
  const int word = column / 4 ^ row % 4 * 2;
  return warp_shared + (row * kHead + word * 4 + column % 4) * sizeof(float);
}

template <class T, int kHead>
__device__ __forceinline__ void KeepResult(const WarpAttention<T, kHead, 1>& warp_state,
                                           std::uint8_t* warp_shared, float2* sums, float scale) {
  const int lane = threadIdx.x % prim::kWarpThreads;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = 8 * half + lane / 4;
    const float sum = SumOfRow(warp_state.sum[0][half]);
    if (lane % 4 == 0) {
      const bool any = warp_state.largest[0][half] != -INFINITY;
      sums[row] = PartSum(any ? warp_state.largest[0][half] * scale : -INFINITY, sum);
    }
#pragma unroll
    for (int c = 0; c < kHead / 8; ++c) {
      void* const at = OutAt<kHead>(warp_shared, row, 8 * c + lane % 4 * 2);
      *static_cast<float2*>(at) =
          float2{warp_state.out[0][c][2 * half], warp_state.out[0][c][2 * half + 1]};
    }
  }
}

template <class T>
__device__ __forceinline__ void StoreOut(const DecodeParameters& given, int batch, int head,
                                         int column, const float4& value, float by) {
  StoreFour(static_cast<T*>(given.out) + batch * given.out_batch_stride +
                head * given.out_head_stride + column,
            value, by);
}

// Puts the warps' results together as MergeParts() does, and writes the part, or the output where
// there is one part.
template <class T, int kHead>
__device__ __forceinline__ void Merge(const DecodeParameters& given, const DecodePlace& place,
                                      std::uint8_t* rings, int ring_bytes,
                                      const float2 (&sums)[kDecodeWarps][kDecodeRows]) {
  for (int i = threadIdx.x; i < place.rows * (kHead / 4); i += kDecodeThreads) {
    const int row = i / (kHead / 4);
    const int column = i % (kHead / 4) * 4;
    float base = -INFINITY;
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) base = fmaxf(base, sums[w][row].x);
    float sum = 0;
    float4 out{};
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) {
      const float weight = sums[w][row].x == -INFINITY ? 0.0F : prim::Exp2(sums[w][row].x - base);
      const auto part = *static_cast<float4*>(OutAt<kHead>(rings + w * ring_bytes, row, column));
      sum += weight * sums[w][row].y;
      out.x += weight * part.x;
      out.y += weight * part.y;
      out.z += weight * part.z;
      out.w += weight * part.w;
    }
    const int head = place.first_head + row;
    const AttentionParts& parts = given.parts;
    if (parts.splits == 1) {
      const float by = EndHead(given, place.batch, head, column == 0, base, sum);
      StoreOut<T>(given, place.batch, head, column, out, by);
      continue;
    }
    const std::int64_t at =
        (std::int64_t{place.batch} * given.heads + head) * parts.splits + place.split;
    parts.outs[at * (kHead / 4) + column / 4] = out;
    // One of the threads of a row; all of them have computed the same sum.
    if (column == 0) parts.sums[at] = PartSum(base, sum);
  }
}

// Thread blocks of DecodeKernel() that share a multiprocessor; 0 leaves it to ptxas, which would
// choose more than registers allow: on sm_100 for heads of 128 with one stage or three, and before
// sm_90 for e4m3 caches with heads of 64. On sm_86 and sm_89 shared memory holds two of the latter.
constexpr int DecodeBlocks([[maybe_unused]] int head, [[maybe_unused]] int stages,
                           [[maybe_unused]] DecodeKind kind) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000 && __CUDA_ARCH__ < 1200
  if (head == 128 && stages != 2) return stages == 1 ? 3 : 2;
  return head == 64 && kind == DecodeKind::kE4m3 ? 3 : 0;
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  if (head != 64 || kind != DecodeKind::kE4m3) return 0;
  return __CUDA_ARCH__ == 800 ? 3 : 2;
#else
  return 0;
#endif
}

// Computed on the host: device code may use constants, but not call the host's functions.
template <int kHead, int kStages, bool kE4m3>
inline constexpr int kWarpRingBytes = DecodeRingBytes(kHead, kStages, kE4m3);

// One part of one sequence, for up to 16 heads that share K and V. Each warp goes through tokens of
// its own, with copies of its own, and waits for no other before the end.
template <class T, int kHead, int kStages, DecodeKind kKind>
__global__ void __launch_bounds__(kDecodeThreads, DecodeBlocks(kHead, kStages, kKind))
    DecodeKernel(const __grid_constant__ DecodeParameters given) {
  using Queries = prim::SharedTile<kDecodeRows, kHead>;
  using Tile = prim::SharedTile<kDecodeKeys, kHead>;
  constexpr bool kE4m3 = kKind == DecodeKind::kE4m3;
  using Loaded = std::conditional_t<kE4m3, E4m3Tile<kHead, kDecodeKeys, prim::kWarpThreads>,
                                    PlainTile<T, kHead>>;
  using State = WarpAttention<T, kHead, 1>;
  constexpr int kRingBytes = kWarpRingBytes<kHead, kStages, kE4m3>;
  static_assert(kRingBytes >= kDecodeRows * kHead * static_cast<int>(sizeof(float)),
                "a warp's result lies where its ring was");
  extern __shared__ __align__(128) std::uint8_t shared[];
  __shared__ float2 sums[kDecodeWarps][kDecodeRows];

  const int warp = threadIdx.x / prim::kWarpThreads;
  const int lane = threadIdx.x % prim::kWarpThreads;
  const DecodePlace place(given);
  const Queries queries{shared};
  std::uint8_t* const rings = shared + Queries::kBytes;
  std::uint8_t* const ring = rings + warp * kRingBytes;

  // A group before those of the pipeline: it has ended when the first tile is there.
  const T* const q = static_cast<const T*>(given.q) + place.batch * given.q_batch_stride +
                     place.first_head * given.q_head_stride;
  CopySixteen<kDecodeThreads>(queries, 0, threadIdx.x,
                              SourceRows<T>{q, given.q_head_stride, place.rows});
  prim::EndCopyGroup();

  DecodeLoader<Loaded> loader(given, place, warp, lane);
  State state;
  state.Clear();
  const auto load = [&](int step, int slot) {
    std::uint8_t* const at = ring + slot * 2 * Loaded::kBytes;
    const int first_seen = kKind == DecodeKind::kPlain ? 0 : place.first_seen;
    loader.Load(step, first_seen, Loaded{at}, Loaded{at + Loaded::kBytes});
  };
  const auto compute = [&](int step, int slot) {
    if (step == 0)
      __syncthreads();  // the queries, which all warps have copied; all have steps or none
    std::uint8_t* at = ring + slot * 2 * Loaded::kBytes;
    if constexpr (kE4m3) {
      std::uint8_t* const wide = ring + kStages * 2 * Loaded::kBytes;
      Loaded{at}.template Widen<T>(Tile{wide}, lane);
      Loaded{at + Loaded::kBytes}.template Widen<T>(Tile{wide + Tile::kBytes}, lane);
      __syncwarp();
      at = wide;
    }
    const Tile keys{at};
    const Tile values{at + Tile::kBytes};
    typename State::template Scores<kDecodeKeys> scores;
    state.Score(scores, queries, keys, 0, lane);
    const int token = loader.Token(step);
    if constexpr (kKind != DecodeKind::kPlain) {
      if (given.inner_scale > 0) state.template SoftCap<kDecodeKeys>(scores, given.inner_scale);
      const int before = place.first_seen - token;
      if (before > 0) {
        state.template MaskBefore<kDecodeKeys>(scores, lane, [&](int) { return before; });
      }
    }
    const int left = place.length - token;
    if (left < kDecodeKeys)
      state.template Mask<kDecodeKeys>(scores, lane, [&](int) { return left; });
    state.template Weigh<kDecodeKeys>(scores, given.scale);
    state.template Add<kDecodeKeys>(scores, values, lane);
  };
  prim::RunPipeline<kStages, prim::WarpScope>(place.steps, load, compute);
  // Only a hint about when CombineKernel may be scheduled. It reads nothing before its
  // GridDependencySynchronize(), which waits until this kernel has ended.
  prim::LetNextGridBegin();

  __syncwarp();  // no lane reads the ring any more
  KeepResult<T, kHead>(state, ring, sums[warp], given.scale);
  __syncthreads();
  Merge<T, kHead>(given, place, rings, kRingBytes, sums);
}

// A thread block for each head of each sequence, a thread for each four of its columns.
template <class T, int kHead>
__global__ void __launch_bounds__(kHead / 4)
    CombineKernel(const __grid_constant__ DecodeParameters given) {
  prim::GridDependencySynchronize();
  const int batch = static_cast<int>(blockIdx.x) / given.heads;
  const int head = static_cast<int>(blockIdx.x) % given.heads;
  const int column = static_cast<int>(threadIdx.x) * 4;
  const MergedParts row = MergeParts<kHead>(given.parts, blockIdx.x, column);
  const float by = EndHead(given, batch, head, column == 0, row.base, row.sum);
  StoreOut<T>(given, batch, head, column, row.out, by);
}

DecodeCache CacheOf(const Tensor& cache) {
  return {.data = cache.data,
          .block_stride = cache.stride[0],
          .token_stride = cache.stride[1],
          .head_stride = cache.stride[2]};
}

DecodeParameters ParametersOf(const AttentionDecodeArgs& args) {
  const DecodeShape shape = ShapeOf(args);
  // The workspace holds the parts' outputs first, then their sums; there are none for one part.
  const std::int64_t out_words =
      args.plan.splits == 1 ? 0
                            : shape.batch * shape.heads * args.plan.splits * shape.head_size / 4;
  auto* const part_outs = static_cast<float4*>(args.workspace.data);
  return {.q = args.q.data,
          .q_batch_stride = args.q.stride[0],
          .q_head_stride = args.q.stride[1],
          .out = args.out.data,
          .out_batch_stride = args.out.stride[0],
          .out_head_stride = args.out.stride[1],
          .k = CacheOf(args.k_cache),
          .v = CacheOf(args.v_cache),
          .tables = static_cast<const std::int32_t*>(args.block_tables.data),
          .table_stride = args.block_tables.stride[0],
          .lengths = static_cast<const std::int32_t*>(args.context_lens.data),
          .length_stride = args.context_lens.stride[0],
          .parts = {part_outs, static_cast<float2*>(static_cast<void*>(part_outs + out_words)),
                    args.plan.splits},
          .heads = static_cast<int>(shape.heads),
          .group = static_cast<int>(shape.heads / shape.kv_heads),
          .row_tiles = static_cast<int>(DecodeRowTiles(shape.heads / shape.kv_heads)),
          .block = static_cast<int>(args.k_cache.shape[1]),
          .scattered = PagesAreScattered(args.k_cache.shape[1]),
          .blocks = static_cast<int>(args.k_cache.shape[0]),
          .max_blocks = static_cast<int>(args.block_tables.shape[1]),
          .scale = (args.softcap > 0 ? args.softcap : ScoreScaleOf(args)) * kLog2E,
          .inner_scale = args.softcap > 0 ? ScoreScaleOf(args) / args.softcap : 0,
          .v_scale = args.v_cache.dtype == DType::kFloat8E4m3 ? args.v_scale : 1,
          .window = static_cast<int>(args.window),
          .sinks = static_cast<const float*>(args.sinks.data),
          .lse = static_cast<float*>(args.lse.data),
          .lse_batch_stride = args.lse.stride[0],
          .lse_head_stride = args.lse.stride[1]};
}

template <class T, int kHead, int kStages, DecodeKind kKind>
Status Enqueue(const AttentionDecodeArgs& args, cuda::StreamRef stream) {
  const DecodeParameters given = ParametersOf(args);
  const DecodeShape shape = ShapeOf(args);
  // Parts are the grid's first size, which may be 2^31 - 1; the second one is limited to 65535.
  const auto parts = static_cast<unsigned>(shape.batch * args.plan.splits);
  const auto heads = static_cast<unsigned>(shape.kv_heads * given.row_tiles);
  FERRY_TRY(
      cuda::Launch(stream, "attention_decode",
                   {.grid = dim3(parts, heads),
                    .block = kDecodeThreads,
                    .shared_bytes = DecodeSharedBytes(kHead, kStages, kKind == DecodeKind::kE4m3)},
                   DecodeKernel<T, kHead, kStages, kKind>, given));
  if (args.plan.splits == 1) return Ok();
  return cuda::Launch(stream, "attention_decode, combine",
                      {.grid = static_cast<unsigned>(shape.batch * shape.heads),
                       .block = kHead / 4,
                       .early = args.plan.early},
                      CombineKernel<T, kHead>, given);
}

template <class T, DecodeKind kKind>
Status EnqueueWithTwoStages(const AttentionDecodeArgs& args, cuda::StreamRef stream) {
  switch (args.q.last()) {
    case 64: return Enqueue<T, 64, 2, kKind>(args, stream);
    case 256: return Enqueue<T, 256, 2, kKind>(args, stream);
    default: return Enqueue<T, 128, 2, kKind>(args, stream);
  }
}

// Other numbers of stages are compiled for heads of 128 of the plain kind; the checks have refused
// the others.
template <class T>
Status EnqueueOfType(const AttentionDecodeArgs& args, cuda::StreamRef stream) {
  if (args.k_cache.dtype == DType::kFloat8E4m3) {
    return EnqueueWithTwoStages<T, DecodeKind::kE4m3>(args, stream);
  }
  if (args.window > 0 || args.softcap > 0) {
    return EnqueueWithTwoStages<T, DecodeKind::kMasked>(args, stream);
  }
  switch (args.plan.stages) {
    case 1: return Enqueue<T, 128, 1, DecodeKind::kPlain>(args, stream);
    case 3: return Enqueue<T, 128, 3, DecodeKind::kPlain>(args, stream);
    default: return EnqueueWithTwoStages<T, DecodeKind::kPlain>(args, stream);
  }
}

}  // namespace

Status LaunchAttentionDecode(const AttentionDecodeArgs& args, cuda::StreamRef stream) {
  return args.q.dtype == DType::kBfloat16 ? EnqueueOfType<__nv_bfloat16>(args, stream)
                                          : EnqueueOfType<__half>(args, stream);
}

}  // namespace ferry::kernels
