// Where a thread block of the TMA and wgmma form of prefill attention works.
#pragma once
#include <cuda.h>

#include <cstdint>

#include "ferry/kernels/attention_parts.cuh"
#include "ferry/kernels/attention_prefill/prefill_block.cuh"

namespace ferry::kernels {

// A __grid_constant__ parameter of the kernel: tensor maps must lie there, or in constant memory.
struct WgmmaSm90Parameters {
  CUtensorMap q;
  CUtensorMap k;
  CUtensorMap v;
  PrefillParameters given;
  int box_keys;  // rows of a box of k and of v, all in one page; they divide the tile's
  int heads;
  // Row r of a tile of queries is query r / tile_heads of head r % tile_heads. More heads than one
  // share K and V, for sequences of few queries.
  int tile_heads;
  int tile_queries;
  std::uint32_t heads_inverse;  // 2^16 / tile_heads, rounded up
  AttentionParts parts;         // one: `out` is written, and no part
};

// Parts of the keys first, then heads; the rest as PrefillPlace has it.
struct WgmmaSm90Place : PrefillPlace {
  int split;
  std::uint32_t heads_inverse;

  __device__ __forceinline__ explicit WgmmaSm90Place(const WgmmaSm90Parameters& all)
      : PrefillPlace(all.given, all.tile_queries, HeadOf(all)),
        split(all.parts.splits > 1 ? static_cast<int>(blockIdx.x) % all.parts.splits : 0),
        heads_inverse(all.heads_inverse) {}

  // Exact for rows up to 128: the error of the inverse, less than 1, times the row is less than
  // 2^16 / tile_heads.
  __device__ __forceinline__ int QueryOf(int row) const {
    return static_cast<int>(static_cast<std::uint32_t>(row) * heads_inverse >> 16);
  }
  // How many keys a row of this tile sees; less than 1 for none.
  __device__ __forceinline__ int SeenBy(int row) const {
    return PrefillPlace::SeenBy(QueryOf(row));
  }
  // Rows of this tile that are queries of the sequence.
  __device__ __forceinline__ int RowsOf(const WgmmaSm90Parameters& all) const {
    return min(all.tile_queries, queries.count - first_query) * all.tile_heads;
  }

 private:
  // Divisions take a while, and a thread block of a short sequence has little else to do.
  static __device__ __forceinline__ int HeadOf(const WgmmaSm90Parameters& all) {
    const int of_head = static_cast<int>(blockIdx.x);
    return (all.parts.splits > 1 ? of_head / all.parts.splits : of_head) * all.tile_heads;
  }
};

// A part's tiles of keys: as many for each, but for the last ones.
struct TileRange {
  int first;
  int count;  // less than 1 for none

  __device__ __forceinline__ TileRange(const WgmmaSm90Parameters& all, const WgmmaSm90Place& place,
                                       int tile_keys) {
    const int tiles = place.TilesOf(all.tile_queries, tile_keys);
    const int splits = all.parts.splits;
    const int each = splits > 1 ? (tiles + splits - 1) / splits : tiles;
    first = place.split * each;
    count = min(each, tiles - first);
  }
};

// Writes a part of each of the warp's rows.
template <class T, int kHead>
__device__ __forceinline__ void StoreParts(const WgmmaSm90Parameters& all,
                                           const WarpAttention<T, kHead, 1>& state, int first_row) {
  const WgmmaSm90Place place(all);
  const int lane = threadIdx.x % prim::kWarpThreads;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = SumOfRow(state.sum[0][half]);
    const int row = first_row + 8 * half + lane / 4;
    if (row >= place.RowsOf(all)) continue;
    const int query = place.QueryOf(row);
    const int head = place.head + row - query * all.tile_heads;
    const std::int64_t at =
        (std::int64_t{place.queries.first + place.first_query + query} * all.heads + head) *
            all.parts.splits +
        place.split;
    if (lane % 4 == 0) {
      all.parts.sums[at] = PartSum(BaseToKeep(state.largest[0][half], all.given.scale), sum);
    }
    auto* const out = static_cast<float2*>(static_cast<void*>(all.parts.outs + at * (kHead / 4)));
#pragma unroll
    for (int c = 0; c < kHead / 8; ++c) {
      out[4 * c + lane % 4] = float2{state.out[0][c][2 * half], state.out[0][c][2 * half + 1]};
    }
  }
}

// Writes the warp's rows where there is one part, by way of their queries' places.
template <class T, int kHead, class Shape>
__device__ __forceinline__ void StoreRows(const WgmmaSm90Parameters& all,
                                          const WarpAttention<T, kHead, 1>& state,
                                          const typename Shape::Queries& held, int first_row) {
  const PrefillParameters& given = all.given;
  HoldOut<T, kHead, Shape>(given, state, held, first_row);
  const WgmmaSm90Place place(all);  // anew: no registers for it in the meantime
  T* const out = static_cast<T*>(given.out) + place.head * given.out_head_stride +
                 std::int64_t{place.queries.first + place.first_query} * given.out_token_stride;
  WriteHeld<T, Shape>(held, first_row, place.RowsOf(all), [&](int row) {
    const int query = place.QueryOf(row);
    return out + query * given.out_token_stride +
           (row - query * all.tile_heads) * given.out_head_stride;
  });
}

}  // namespace ferry::kernels
