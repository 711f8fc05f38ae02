// Device code that both GPU forms of prefill attention share: where a thread block works, and how
// it writes its results.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "ferry/kernels/attention_argument.h"
#include "ferry/kernels/attention_end.cuh"
#include "ferry/kernels/attention_prefill/attention_prefill.h"
#include "ferry/kernels/attention_tile.cuh"

namespace ferry::kernels {

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
  int queries;     // of all sequences
  int keys;        // of all sequences, or of one sequence's pages
  int page;        // tokens
  bool scattered;  // 16 tokens may lie in several pages
  int pages;
  int group;    // heads that share one of K and V
  float scale;  // with log2(e); that of the tanh with a softcap
  bool causal;
  float inner_scale;   // of the tanh's argument; 0: there is none
  int window;          // 0: none
  const float* sinks;  // null: none
  float* lse;          // null: not wanted
  std::int64_t lse_token_stride;
  std::int64_t lse_head_stride;
};
// Over e4m3 keys and values. Apart, so that the kernels without them have what they need only.
struct E4m3PrefillParameters : PrefillParameters {
  float v_scale = 1;
};

// Paged keys are [blocks, block, kv_heads, head_size], others [keys, kv_heads, head_size].
inline PrefillKeys KeysOf(const Tensor& keys, bool paged) {
  const std::size_t token = paged ? 1 : 0;
  return {.data = keys.data,
          .page_stride = paged ? keys.stride[0] : 0,
          .token_stride = keys.stride[token],
          .head_stride = keys.stride[token + 1]};
}

// Numbers fit int: CheckAttentionPrefill() allows 2^30 tokens, and pages that an int32 can name.
inline PrefillParameters ParametersOf(const AttentionPrefillArgs& args) {
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
          .scattered = PagesAreScattered(PageTokens(args)),
          .pages = paged ? static_cast<int>(args.k.shape[0]) : 0,
          .group = static_cast<int>(args.q.shape[1] / KvHeads(args)),
          .scale = (args.softcap > 0 ? args.softcap : ScoreScaleOf(args)) * kLog2E,
          .causal = args.causal,
          .inner_scale = args.softcap > 0 ? ScoreScaleOf(args) / args.softcap : 0,
          .window = static_cast<int>(args.window),
          .sinks = static_cast<const float*>(args.sinks.data),
          .lse = static_cast<float*>(args.lse.data),
          .lse_token_stride = args.lse.stride[0],
          .lse_head_stride = args.lse.stride[1]};
}

// The tokens of one sequence, in the rows of the tensor that holds all sequences.
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

  __device__ __forceinline__ PrefillPlace(const PrefillParameters& given, int rows)
      : PrefillPlace(given, rows, static_cast<int>(blockIdx.x)) {}
  __device__ __forceinline__ PrefillPlace(const PrefillParameters& given, int rows, int of_head) {
    head = of_head;
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
    // As many keys as there can be (kMaxTokens), and little enough that adding a row does not
    // overflow.
    constexpr int kAll = 1 << 30;
    seen_by_first = given.causal ? first_query + 1 + keys.count - queries.count : kAll;
  }

  // How many keys a query of this tile sees; less than 1 for none.
  __device__ __forceinline__ int SeenBy(int row) const {
    return min(keys.count, seen_by_first + row);
  }
  // The first key of a query's window; there may be none so far.
  __device__ __forceinline__ int FirstSeenBy(const PrefillParameters& given, int row) const {
    if (given.window == 0) return 0;
    return max(0, first_query + row + 1 + keys.count - queries.count - given.window);
  }
  // How many tiles of so many keys the queries of this tile see, of `rows` at most.
  __device__ __forceinline__ int TilesOf(int rows, int tile_keys) const {
    const int last_row = min(rows, queries.count - first_query) - 1;
    return (max(0, SeenBy(last_row)) + tile_keys - 1) / tile_keys;
  }
};

// The base of a row's weights, as BaseOf(), but -inf for no keys.
__device__ __forceinline__ float BaseToKeep(float largest, float scale) {
  return largest == -INFINITY ? -INFINITY : largest * scale;
}

// What a query's sum of weights times values is multiplied by. Keeps the lse where `keeps` and the
// row is one of the sequence.
__device__ __forceinline__ float EndQuery(const PrefillParameters& given, int rows, int row,
                                          bool keeps, float base, float sum) {
  const PrefillPlace place(given, rows);
  const RowEnd end = EndRow(base, sum, given.sinks == nullptr ? nullptr : given.sinks + place.head);
  const int query = place.first_query + row;
  if (keeps && given.lse != nullptr && query < place.queries.count) {
    given.lse[std::int64_t{place.queries.first + query} * given.lse_token_stride +
              place.head * given.lse_head_stride] = end.lse;
  }
  return end.factor;
}

// The warp's results in the places of its own queries, which nobody needs any more: so that rows
// can be written in words of 16 bytes.
// With kExtras sinks join the sums, and lse is kept; v_scale is applied where there is one.
template <class T, int kHead, class Shape, bool kExtras = false, class Given>
__device__ __forceinline__ void HoldOut(const Given& given,
                                        const WarpAttention<T, kHead, Shape::kRowTiles>& state,
                                        const typename Shape::Queries& held, int first_row) {
  const int lane = threadIdx.x % prim::kWarpThreads;
  __syncwarp();
#pragma unroll
  for (int t = 0; t < Shape::kRowTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Each lane has summed its own columns; the four of a row are added only here, once a kernel.
      const float sum = SumOfRow(state.sum[t][half]);
      // No key, no weight. NaN stays NaN.
      float by = sum == 0 ? 0.0F : 1 / sum;
      const int row = first_row + 16 * t + 8 * half + lane / 4;
      if constexpr (kExtras) {
        by = EndQuery(given, Shape::kRows, row, lane % 4 == 0,
                      BaseToKeep(state.largest[t][half], given.scale), sum);
      }
      if constexpr (std::is_same_v<Given, E4m3PrefillParameters>) by *= given.v_scale;
#pragma unroll
      for (int c = 0; c < kHead / 8; ++c) {
        void* const at = held.At(row, c) + lane % 4 * sizeof(std::uint32_t);
        *static_cast<std::uint32_t*>(at) =
            WordOf(state.out[t][c][2 * half] * by, state.out[t][c][2 * half + 1] * by, T{});
      }
    }
  }
  __syncwarp();
}

// Writes what HoldOut() holds: the warp's rows before row `left` of the tile. `to_of` has the
// address of a row.
template <class T, class Shape, class ToOf>
__device__ __forceinline__ void WriteHeld(const typename Shape::Queries& held, int first_row,
                                          int left, const ToOf& to_of) {
  constexpr int kRowWords = Shape::Queries::kRowWords;
#pragma unroll
  for (int i = threadIdx.x % prim::kWarpThreads; i < Shape::kWarpRows * kRowWords;
       i += prim::kWarpThreads) {
    const int row = first_row + i / kRowWords;
    const int word = i % kRowWords;
    // Rows beyond the sequence belong to the next one, whose own thread block writes them.
    if (row >= left) continue;
    void* const to = to_of(row) + word * Shape::Queries::kWordElements;
    *static_cast<uint4*>(to) = *static_cast<const uint4*>(static_cast<void*>(held.At(row, word)));
  }
}

template <class T, int kHead, class Shape, bool kExtras, class Given>
__device__ __forceinline__ void StoreOut(const Given& given,
                                         const WarpAttention<T, kHead, Shape::kRowTiles>& state,
                                         const typename Shape::Queries& held, int first_row) {
  HoldOut<T, kHead, Shape, kExtras>(given, state, held, first_row);
  const PrefillPlace place(given, Shape::kRows);  // anew: no registers for it in the meantime
  T* const out = static_cast<T*>(given.out) + place.head * given.out_head_stride +
                 std::int64_t{place.queries.first + place.first_query} * given.out_token_stride;
  WriteHeld<T, Shape>(held, first_row, place.queries.count - place.first_query,
                      [&](int row) { return out + row * given.out_token_stride; });
}

}  // namespace ferry::kernels
