#include <cstdint>

#include "ferry/cuda/launch.cuh"
#include "ferry/kernels/attention_argument.h"
#include "ferry/kernels/attention_prefill/attention_prefill.h"
#include "ferry/kernels/attention_tile.cuh"
#include "ferry/prim/pipeline.cuh"

namespace ferry::kernels {
namespace {

// Strides in elements.
struct PrefillKeys {
  const void* data;
  std::int64_t page_stride;  // 0 where keys are not paged
  std::int64_t token_stride;
  std::int64_t head_stride;
};

struct PrefillParameters {
  const void* q;
  std::int64_t q_token_stride;
  std::int64_t q_head_stride;
  void* out;
  std::int64_t out_token_stride;
  std::int64_t out_head_stride;
  PrefillKeys k;
  PrefillKeys v;
  const std::int32_t* q_ends;  // cu_seqlens
  std::int64_t q_ends_stride;
  const std::int32_t* k_ends;
  std::int64_t k_ends_stride;
  const std::int32_t* tables;  // null where keys are not paged
  std::int64_t table_stride;
  int queries;  // of all sequences
  int keys;     // likewise, or of one sequence's pages
  int page;     // tokens
  int pages;
  int group;    // heads that share one of K and V
  float scale;  // with log2(e)
  bool causal;
};

template <class T, int kHead, int kTileStages>
struct PrefillShape {
  static constexpr PrefillTiles kTiles = PrefillTilesOf(kHead);
  static constexpr int kRowTiles = kTiles.row_tiles;
  static constexpr int kKeys = kTiles.keys;
  static constexpr int kStages = kTileStages;
  static constexpr int kThreads = kTiles.warps * 32;
  static constexpr int kWarpRows = 16 * kRowTiles;
  static constexpr int kRows = kTiles.warps * kWarpRows;
  using Queries = prim::SharedTile<kRows, kHead>;
  using Keys = prim::SharedTile<kKeys, kHead>;
  static constexpr int kSharedBytes = Queries::kBytes + kStages * 2 * Keys::kBytes;
};

struct TokenRange {
  int first;
  int count;
};
// No further than there are tokens, whatever the ends say.
__device__ __forceinline__ TokenRange RangeOf(const std::int32_t* ends, std::int64_t stride,
                                              int sequence, int most) {
  const int first = max(0, min(ends[sequence * stride], most));
  const int end = max(first, min(ends[(sequence + 1) * stride], most));
  return {first, end - first};
}

// Where a thread block is in the grid: heads first, then tiles of queries, of which the last, which
// see the most keys, begin first; then sequences.
struct PrefillPlace {
  int head;
  int kv_head;
  int sequence;
  TokenRange queries;
  TokenRange keys;    // first: of keys that are not paged
  int first_query;    // of this tile, in its sequence
  int seen_by_first;  // keys that the first query sees, were there as many; each next one sees one
                      // more

  __device__ __forceinline__ PrefillPlace(const PrefillParameters& given, int rows) {
    head = static_cast<int>(blockIdx.x);
    kv_head = head / given.group;
    sequence = static_cast<int>(blockIdx.z);
    queries = RangeOf(given.q_ends, given.q_ends_stride, sequence, given.queries);
    if (given.tables == nullptr) {
      keys = RangeOf(given.k_ends, given.k_ends_stride, sequence, given.keys);
    } else {
      const std::int32_t* const end = given.k_ends + sequence * given.k_ends_stride;
      keys = {0, max(0, min(end[given.k_ends_stride] - end[0], given.keys))};
    }
    first_query = static_cast<int>(gridDim.y - 1 - blockIdx.y) * rows;
    constexpr int kAll = 1 << 30;
    seen_by_first = given.causal ? first_query + 1 + keys.count - queries.count : kAll;
  }

  // How many keys a query of this tile sees; less than 1 for none.
  __device__ __forceinline__ int SeenBy(int row) const {
    return min(keys.count, seen_by_first + row);
  }
};

template <class T, class Shape>
__device__ __forceinline__ void LoadQueries(const PrefillParameters& given,
                                            const PrefillPlace& place,
                                            const typename Shape::Queries& queries) {
  const T* const first =
      static_cast<const T*>(given.q) + place.head * given.q_head_stride +
      std::int64_t{place.queries.first + place.first_query} * given.q_token_stride;
  const int left = place.queries.count - place.first_query;
#pragma unroll
  for (int s = 0; s < Shape::kRows / 16; ++s) {
    CopySixteen<Shape::kThreads>(
        queries, s, threadIdx.x,
        SourceRows<T>{first + 16 * s * given.q_token_stride, given.q_token_stride, left - 16 * s});
  }
}

// Begins copies of a tile of keys and of their values. Sixteen tokens lie in one page.
template <class T, class Shape>
__device__ __forceinline__ void LoadKeys(const PrefillParameters& given, const PrefillPlace& place,
                                         int first_key, const typename Shape::Keys& keys,
                                         const typename Shape::Keys& values) {
  constexpr int kSixteens = Shape::kKeys / 16;
  const bool paged = given.tables != nullptr;
  int pages[kSixteens];  // all looked up before the first is waited for
#pragma unroll
  for (int s = 0; s < kSixteens; ++s) {
    const int key = first_key + 16 * s;
    pages[s] = 0;
    if (paged && key < place.keys.count) {
      pages[s] = given.tables[place.sequence * given.table_stride + key / given.page];
    }
  }
#pragma unroll
  for (int s = 0; s < kSixteens; ++s) {
    const int key = first_key + 16 * s;
    const bool there = !paged || (pages[s] >= 0 && pages[s] < given.pages);
    const int left = there ? place.keys.count - key : 0;
    const int token = paged ? key % given.page : place.keys.first + key;
    const auto rows_of = [&](const PrefillKeys& from) {
      return SourceRows<T>{static_cast<const T*>(from.data) + place.kv_head * from.head_stride +
                               pages[s] * from.page_stride + token * from.token_stride,
                           from.token_stride, left};
    };
    CopySixteen<Shape::kThreads>(keys, s, threadIdx.x, rows_of(given.k));
    CopySixteen<Shape::kThreads>(values, s, threadIdx.x, rows_of(given.v));
  }
}

// By way of the warp's own queries, which nobody needs any more: so that rows are written in words
// of 16 bytes.
template <class T, int kHead, class Shape>
__device__ __forceinline__ void StoreOut(const PrefillParameters& given,
                                         const WarpAttention<T, kHead, Shape::kRowTiles>& state,
                                         const typename Shape::Queries& held, int first_row) {
  const int lane = threadIdx.x % prim::kWarpThreads;
  __syncwarp();
#pragma unroll
  for (int t = 0; t < Shape::kRowTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = SumOfRow(state.sum[t][half]);
      // No key, no weight. NaN stays NaN.
      const float by = sum == 0 ? 0.0F : 1 / sum;
      const int row = first_row + 16 * t + 8 * half + lane / 4;
#pragma unroll
      for (int c = 0; c < kHead / 8; ++c) {
        void* const at = held.At(row, c) + lane % 4 * sizeof(std::uint32_t);
        *static_cast<std::uint32_t*>(at) =
            WordOf(state.out[t][c][2 * half] * by, state.out[t][c][2 * half + 1] * by, T{});
      }
    }
  }
  __syncwarp();
  const PrefillPlace place(given, Shape::kRows);  // anew: no registers for it in the meantime
  T* const out = static_cast<T*>(given.out) + place.head * given.out_head_stride +
                 std::int64_t{place.queries.first + place.first_query} * given.out_token_stride;
  const int left = place.queries.count - place.first_query;
  constexpr int kRowWords = Shape::Queries::kRowWords;
#pragma unroll
  for (int i = lane; i < Shape::kWarpRows * kRowWords; i += prim::kWarpThreads) {
    const int row = first_row + i / kRowWords;
    const int word = i % kRowWords;
    if (row >= left) continue;
    const void* const from = held.At(row, word);
    void* const to = out + row * given.out_token_stride + word * Shape::Queries::kWordElements;
    *static_cast<uint4*>(to) = *static_cast<const uint4*>(from);
  }
}

// A tile of queries of one head of one sequence; each warp has rows of it for itself, and all share
// the tiles of keys that go by.
template <class T, int kHead, int kStages>
__global__ void __launch_bounds__(PrefillShape<T, kHead, kStages>::kThreads)
    PrefillKernel(const __grid_constant__ PrefillParameters given) {
  using Shape = PrefillShape<T, kHead, kStages>;
  using State = WarpAttention<T, kHead, Shape::kRowTiles>;
  using Keys = typename Shape::Keys;
  constexpr int kKeys = Shape::kKeys;
  extern __shared__ __align__(128) std::uint8_t shared[];

  const PrefillPlace place(given, Shape::kRows);
  if (place.first_query >= place.queries.count) return;
  const int lane = threadIdx.x % prim::kWarpThreads;
  const int first_row = static_cast<int>(threadIdx.x) / prim::kWarpThreads * Shape::kWarpRows;
  const typename Shape::Queries queries{shared};
  std::uint8_t* const ring = shared + Shape::Queries::kBytes;

  const int last_row = min(Shape::kRows, place.queries.count - place.first_query) - 1;
  const int tiles = (max(0, place.SeenBy(last_row)) + kKeys - 1) / kKeys;
  // A group before those of the pipeline: it has ended when the first tile is there.
  if (tiles > 0) LoadQueries<T, Shape>(given, place, queries);
  prim::EndCopyGroup();
  State state;
  state.Clear();
  const auto load = [&](int tile, int slot) {
    std::uint8_t* const at = ring + slot * 2 * Keys::kBytes;
    LoadKeys<T, Shape>(given, place, tile * kKeys, Keys{at}, Keys{at + Keys::kBytes});
  };
  const auto compute = [&](int tile, int slot) {
    const int first_key = tile * kKeys;
    if (first_key >= place.SeenBy(first_row + Shape::kWarpRows - 1)) return;
    const Keys keys{ring + slot * 2 * Keys::kBytes};
    const Keys values{keys.data + Keys::kBytes};
    typename State::template Scores<kKeys> scores;
    state.Score(scores, queries, keys, first_row, lane);
    if (first_key + kKeys > place.SeenBy(first_row)) {  // not all queries see all keys
      state.template Mask<kKeys>(
          scores, lane, [&](int row) { return place.SeenBy(first_row + row) - first_key; });
    }
    state.template Weigh<kKeys>(scores, given.scale);
    state.template Add<kKeys>(scores, values, lane);
  };
  prim::RunPipeline<kStages, prim::BlockScope>(tiles, load, compute);
  StoreOut<T, kHead, Shape>(given, state, queries, first_row);
}

PrefillKeys KeysOf(const Tensor& keys, bool paged) {
  const std::size_t token = paged ? 1 : 0;
  return {.data = keys.data,
          .page_stride = paged ? keys.stride[0] : 0,
          .token_stride = keys.stride[token],
          .head_stride = keys.stride[token + 1]};
}

PrefillParameters ParametersOf(const AttentionPrefillArgs& args) {
  const bool paged = !args.block_tables.none();
  const std::int64_t keys = paged ? args.block_tables.shape[1] * PageTokens(args) : args.k.shape[0];
  return {.q = args.q.data,
          .q_token_stride = args.q.stride[0],
          .q_head_stride = args.q.stride[1],
          .out = args.out.data,
          .out_token_stride = args.out.stride[0],
          .out_head_stride = args.out.stride[1],
          .k = KeysOf(args.k, paged),
          .v = KeysOf(args.v, paged),
          .q_ends = static_cast<const std::int32_t*>(args.cu_seqlens_q.data),
          .q_ends_stride = args.cu_seqlens_q.stride[0],
          .k_ends = static_cast<const std::int32_t*>(args.cu_seqlens_k.data),
          .k_ends_stride = args.cu_seqlens_k.stride[0],
          .tables = paged ? static_cast<const std::int32_t*>(args.block_tables.data) : nullptr,
          .table_stride = paged ? args.block_tables.stride[0] : 0,
          .queries = static_cast<int>(args.q.shape[0]),
          .keys = static_cast<int>(keys),
          .page = static_cast<int>(PageTokens(args)),
          .pages = paged ? static_cast<int>(args.k.shape[0]) : 0,
          .group = static_cast<int>(args.q.shape[1] / KvHeads(args)),
          .scale = args.scale * kLog2E,
          .causal = args.causal};
}

template <class T, int kHead, int kStages>
Status Enqueue(const AttentionPrefillArgs& args, cuda::StreamRef stream) {
  using Shape = PrefillShape<T, kHead, kStages>;
  const std::int64_t tiles = (args.max_seqlen_q + Shape::kRows - 1) / Shape::kRows;
  const dim3 grid(static_cast<unsigned>(args.q.shape[1]), static_cast<unsigned>(tiles),
                  static_cast<unsigned>(args.cu_seqlens_q.shape[0] - 1));
  return cuda::Launch(stream, "attention_prefill",
                      {.grid = grid, .block = Shape::kThreads, .shared_bytes = Shape::kSharedBytes},
                      PrefillKernel<T, kHead, kStages>, ParametersOf(args));
}

template <class T>
Status EnqueueOfType(const AttentionPrefillArgs& args, cuda::StreamRef stream) {
  switch (args.q.last()) {
    case 64: return Enqueue<T, 64, 2>(args, stream);
    case 256: return Enqueue<T, 256, 2>(args, stream);
    default: break;
  }
  switch (args.stages) {
    case 1: return Enqueue<T, 128, 1>(args, stream);
    case 2: return Enqueue<T, 128, 2>(args, stream);
    default: return Enqueue<T, 128, 3>(args, stream);
  }
}

}  // namespace

Status LaunchAttentionPrefill(const AttentionPrefillArgs& args, cuda::StreamRef stream) {
  return args.q.dtype == DType::kBfloat16 ? EnqueueOfType<__nv_bfloat16>(args, stream)
                                          : EnqueueOfType<__half>(args, stream);
}

}  // namespace ferry::kernels
