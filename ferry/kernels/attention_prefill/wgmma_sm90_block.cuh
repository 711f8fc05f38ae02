// Prefill attention for compute capability 9.0, with the work divided as in FlashAttention-3 (Shah
// et al. 2024, section 3): one warp requests tiles of K and V from the copy engine, and two
// warpgroups of 64 queries each let the tensor cores work on one tile while they compute the
// softmax of the next one.
#pragma once
#include <cstdint>

#include "ferry/cuda/prim/mbarrier.cuh"
#include "ferry/cuda/prim/named_barrier.cuh"
#include "ferry/cuda/prim/panel_tile.cuh"
#include "ferry/cuda/prim/tma.cuh"
#include "ferry/kernels/attention_prefill/attention_prefill.h"
#include "ferry/kernels/attention_prefill/prefill_block.cuh"
#include "ferry/kernels/attention_prefill/wgmma_sm90_place.cuh"

namespace ferry::kernels {

template <class T, int kHead>
struct WgmmaSm90Shape {
  static constexpr WgmmaSm90Tiles kTiles = WgmmaSm90TilesOf(kHead);
  static constexpr int kKeys = kTiles.keys;
  static constexpr int kStages = kTiles.stages;
  static constexpr bool kTurns = kTiles.turns;
  static constexpr int kGroups = kTiles.groups;  // which compute
  static constexpr int kGroupRows = 64;
  static constexpr int kRows = kGroups * kGroupRows;
  static constexpr int kWarpRows = 16;
  static constexpr int kRowTiles = 1;
  static constexpr int kWarps = kGroups * 4;
  static constexpr int kLoaders = 4;  // warps that load, of a warpgroup of their own
  static constexpr int kThreads = (1 + kGroups) * prim::kWarpgroupThreads;
  using Queries = prim::PanelTile<kRows, kHead>;
  using Keys = prim::PanelTile<kKeys, kHead>;
  using State = WarpAttention<T, kHead, kRowTiles>;
  using Scores = typename State::template Scores<kKeys>;
  using Ring = prim::RingPlace<kStages>;
  static constexpr int kSharedBytes =
      Queries::kBytes + kStages * 2 * Keys::kBytes + Queries::kAlignment;
  // A thread block's threads begin with 65536 / kThreads registers, and have as many afterwards.
  // For heads of 256 alone the outputs are 128 of a thread's.
  static constexpr int kLoaderRegisters = 40;
  static constexpr int kGroupRegisters = 232;
  static_assert(kLoaderRegisters + kGroups * kGroupRegisters <= 65536 / prim::kWarpgroupThreads,
                "there are no more");
};

// Barriers of the tiles in shared memory.
template <int kStages>
struct WgmmaSm90Barriers {
  std::uint64_t queries;
  // "Full" counts one arrival, the loading thread's, and the bytes of the tile; "empty" counts one
  // arrival of each warp that computes.
  std::uint64_t keys_full[kStages];
  std::uint64_t keys_empty[kStages];
  std::uint64_t values_full[kStages];
  std::uint64_t values_empty[kStages];
  std::uint64_t
      ragged;  // the last tile of values has arrived but its rows past the end are not cleared yet
};

template <class Shape>
struct WgmmaSm90Tile {
  using Keys = typename Shape::Keys;
  std::uint8_t* shared;
  WgmmaSm90Barriers<Shape::kStages>* barriers;

  __device__ __forceinline__ typename Shape::Queries Queries() const { return {shared}; }
  __device__ __forceinline__ Keys KeysOf(int slot) const {
    return {shared + Shape::Queries::kBytes + slot * 2 * Keys::kBytes};
  }
  __device__ __forceinline__ Keys ValuesOf(int slot) const {
    return {KeysOf(slot).data + Keys::kBytes};
  }

  // One thread.
  __device__ __forceinline__ void Init() const {
    prim::InitBarrier(prim::SharedAddress(&barriers->queries), 1);
    prim::InitBarrier(prim::SharedAddress(&barriers->ragged), 1);
    for (int slot = 0; slot < Shape::kStages; ++slot) {
      prim::InitBarrier(prim::SharedAddress(&barriers->keys_full[slot]), 1);
      prim::InitBarrier(prim::SharedAddress(&barriers->values_full[slot]), 1);
      prim::InitBarrier(prim::SharedAddress(&barriers->keys_empty[slot]), Shape::kWarps);
      prim::InitBarrier(prim::SharedAddress(&barriers->values_empty[slot]), Shape::kWarps);
    }
    prim::PublishBarriers();
  }
};

// All panels of a tile of queries, which may lie beyond the last one's. One thread.
template <class Tile>
__device__ __forceinline__ void LoadQueries(const WgmmaSm90Parameters& all,
                                            const WgmmaSm90Place& place, const Tile& tile,
                                            std::uint32_t barrier) {
  // Where the heads do not divide a tile, its last rows are not loaded: they are nobody's.
  prim::ArriveAndExpect(barrier, all.tile_heads * all.tile_queries * Tile::kPanelRowBytes *
                                     static_cast<std::uint32_t>(Tile::kPanels));
#pragma unroll
  for (int panel = 0; panel < Tile::kPanels; ++panel) {
    prim::LoadTile(prim::SharedAddress(tile.data) + panel * Tile::kPanelBytes, all.q, barrier,
                   panel * Tile::kPanelColumns, place.head,
                   place.queries.first + place.first_query);
  }
}

// A lane's box of each tile of keys: the columns of a panel, and as many rows as lie in one page,
// or all of the tile's where keys are not paged. A tile has 16 boxes at most, for pages of 16 and
// heads of 128. They are dealt out to the warps that load, since a warp requests one after another:
// of one warp, pages of 16 reached 0.77 of the rate of keys that are not paged on an H100.
template <class Shape>
class KeyBox {
 public:
  using Keys = typename Shape::Keys;

  __device__ __forceinline__ KeyBox(const WgmmaSm90Parameters& all, const WgmmaSm90Place& place,
                                    int first_tile, int loader)
      : given_(all.given),
        place_(place),
        announces_(loader == 0 && threadIdx.x % prim::kWarpThreads == 0),
        panel_(NumberOf(loader) % Keys::kPanels),
        row_(NumberOf(loader) / Keys::kPanels * all.box_keys),
        first_key_(first_tile * Shape::kKeys + row_),
        table_(given_.tables + place.sequence * given_.table_stride) {}

  // What the table says of the box in tile i. Entries for keys beyond the sequence are not read.
  __device__ __forceinline__ int EntryFor(int i) const {
    if (given_.tables == nullptr) return 0;
    const int key = first_key_ + i * Shape::kKeys;
    return row_ < Shape::kKeys && key < place_.keys.count ? table_[key / given_.page] : -1;
  }
  // Requests tile i. All lanes of the warp. Page -1 lies outside the map and gives zeros. Other
  // warps' boxes may arrive before the tile is announced: the phase still waits for that.
  __device__ __forceinline__ void Load(const Keys& tile, const CUtensorMap& map,
                                       std::uint64_t* barrier, int i, int entry) const {
    const std::uint32_t full = prim::SharedAddress(barrier);
    if (announces_) prim::ArriveAndExpect(full, Keys::kBytes);
    __syncwarp();
    if (row_ >= Shape::kKeys) return;
    const int key = first_key_ + i * Shape::kKeys;
    const bool paged = given_.tables != nullptr;
    const int row = paged ? key % given_.page : place_.keys.first + key;
    const int page = !paged || (entry >= 0 && entry < given_.pages) ? entry : -1;
    prim::LoadTile(prim::SharedAddress(tile.data) + panel_ * Keys::kPanelBytes + Keys::Rows(row_),
                   map, full, panel_ * Keys::kPanelColumns, row, place_.kv_head, page);
  }

 private:
  static __device__ __forceinline__ int NumberOf(int loader) {
    return static_cast<int>(threadIdx.x % prim::kWarpThreads) * Shape::kLoaders + loader;
  }

  const PrefillParameters& given_;
  const WgmmaSm90Place& place_;
  const bool announces_;
  const int panel_;
  const int row_;        // in the tile; lanes whose row is none of the tile's have no box
  const int first_key_;  // that of the box in the first tile
  const std::int32_t* const table_;
};

// The part of a warp that loads. K is one tile ahead of V, as it is when they are used, and the
// table is read one tile ahead of K.
template <class Shape>
__device__ __forceinline__ void LoadTiles(const WgmmaSm90Parameters& all,
                                          const WgmmaSm90Place& place,
                                          const WgmmaSm90Tile<Shape>& tile, const TileRange& tiles,
                                          int loader) {
  auto& barriers = *tile.barriers;
  const KeyBox<Shape> box(all, place, tiles.first, loader);
  if (loader / Shape::Keys::kPanels * all.box_keys >= Shape::kKeys) return;  // no box for any lane
  typename Shape::Ring keys;
  typename Shape::Ring values;
  int next = box.EntryFor(0);
  const auto load_keys = [&](int i) {
    const int entry = next;
    next = box.EntryFor(i + 1);
    // Acquires what the consumers' Arrive() released: their last reads of the buffer have ended.
    prim::WaitForPhase(prim::SharedAddress(&barriers.keys_empty[keys.slot]), keys.empty());
    box.Load(tile.KeysOf(keys.slot), all.k, &barriers.keys_full[keys.slot], i, entry);
    keys.Advance();
    return entry;
  };
  int ahead = load_keys(0);
  for (int i = 0; i < tiles.count; ++i) {
    const int entry = ahead;
    if (i + 1 < tiles.count) ahead = load_keys(i + 1);
    prim::WaitForPhase(prim::SharedAddress(&barriers.values_empty[values.slot]), values.empty());
    // A tile that reaches beyond the sequence must be cleared before anybody multiplies by it, so
    // it completes `ragged`, and ClearBehindEnd() passes it on to values_full. There is at most
    // one, the last.
    const bool ragged = (tiles.first + i + 1) * Shape::kKeys > place.keys.count;
    box.Load(tile.ValuesOf(values.slot), all.v,
             ragged ? &barriers.ragged : &barriers.values_full[values.slot], i, entry);
    values.Advance();
  }
}

// The rows of V after a sequence's end belong to other sequences or were never written, so they may
// be NaN, and a weight of 0 does not make those 0. By one warp that loads.
template <class Shape>
__device__ __forceinline__ void ClearBehindEnd(const PrefillPlace& place,
                                               const WgmmaSm90Tile<Shape>& tile,
                                               const TileRange& tiles) {
  using Keys = typename Shape::Keys;
  const int there = place.keys.count - (tiles.first + tiles.count - 1) * Shape::kKeys;
  // The last tile is whole, and LoadTiles() has announced it at values_full itself.
  if (there >= Shape::kKeys) return;
  const int lane = threadIdx.x % prim::kWarpThreads;
  const int slot = (tiles.count - 1) % Shape::kStages;
  const Keys values = tile.ValuesOf(slot);
  prim::WaitForPhase(prim::SharedAddress(&tile.barriers->ragged), 0);
  for (int i = there * Keys::kRowWords + lane; i < Shape::kKeys * Keys::kRowWords;
       i += prim::kWarpThreads) {
    void* const at = values.At(i / Keys::kRowWords, i % Keys::kRowWords);
    *static_cast<uint4*>(at) = uint4{};
  }
  // wgmma reads shared memory through the async proxy: each lane publishes its own zeros before
  // lane 0 arrives for all of them.
  prim::PublishToAsyncProxy();
  __syncwarp();
  if (lane == 0) prim::Arrive(prim::SharedAddress(&tile.barriers->values_full[slot]));
}

// Two warpgroups that alternate: one starts its matrix products while the other one computes its
// softmax ("ping-pong" of FlashAttention-3).
enum : int { kTurnBarrier = 1, kOutBarrier = 3 };
template <class Shape>
struct Turns {
  int group;

  // The first warpgroup begins; all of both call it.
  __device__ __forceinline__ void Begin() const {
    // A turn barrier counts both warpgroups, the one that waits and the one that passes the turn
    // on. The second one's arrival is what the first one's first Take() waits for.
    if (group == 1) Pass(true);
  }
  __device__ __forceinline__ void Take() const {
    if constexpr (Shape::kTurns) {
      prim::WaitAtNamed(kTurnBarrier + group, 2 * prim::kWarpgroupThreads);
    }
  }
  // `again`: this warpgroup takes another turn.
  __device__ __forceinline__ void Pass(bool again) const {
    if constexpr (Shape::kTurns) {
      if (group == 1 && !again) return;  // the first one takes no further turn
      prim::ArriveAtNamed(kTurnBarrier + 1 - group, 2 * prim::kWarpgroupThreads);
    }
  }
};

// A warpgroup's 64 queries.
template <class T, int kHead>
struct GroupAttention {
  using Shape = WgmmaSm90Shape<T, kHead>;
  using State = typename Shape::State;
  using Scores = typename Shape::Scores;
  static constexpr int kKeys = Shape::kKeys;
  static constexpr int kColumnsAtOnce = kHead < 128 ? kHead : 128;
  using Weights = prim::FragmentA[kKeys / 16];

  const WgmmaSm90Tile<Shape>& tile;
  int first_row;  // of this warpgroup, in the tile of queries
  State state;
  typename Shape::Ring keys;
  typename Shape::Ring values;

  __device__ __forceinline__ void AwaitKeys() const {
    prim::WaitForPhase(prim::SharedAddress(&tile.barriers->keys_full[keys.slot]), keys.full());
  }
  __device__ __forceinline__ void AwaitValues() const {
    prim::WaitForPhase(prim::SharedAddress(&tile.barriers->values_full[values.slot]),
                       values.full());
  }

  // Asynchronous: `scores` may be read after WaitForMatrices() and KeepInOrder(). The first product
  // overwrites what was there (column > 0 says whether to add).
  // Begins scores = queries * keys^T.
  __device__ __forceinline__ void BeginScores(Scores& scores) {
    const std::uint64_t a = tile.Queries().RowsFrom(first_row);
    const std::uint64_t b = tile.KeysOf(keys.slot).RowsFrom(0);
    prim::WgmmaFence();
#pragma unroll
    for (int column = 0; column < kHead; column += 16) {
      prim::MultiplyAddAsync<T, prim::MatrixOrder::kTransposed>(
          scores[0], prim::MatrixDescriptor::Behind(a, Shape::Queries::Columns(column)),
          prim::MatrixDescriptor::Behind(b, Shape::Keys::Columns(column)), column > 0);
    }
    prim::EndMatrixGroup();
  }

  // Begins out += weights * values.
  __device__ __forceinline__ void BeginOut(const Weights& weights) {
    prim::WgmmaFence();
#pragma unroll
    for (int column = 0; column < kHead; column += kColumnsAtOnce) {
      const std::uint64_t b = tile.ValuesOf(values.slot).ColumnsFrom(column);
      // A row of `out` is one array; so many of its column tiles are one as well.
      auto& out = *reinterpret_cast<float(*)[kColumnsAtOnce / 8][4]>(&state.out[0][column / 8]);
#pragma unroll
      for (int key = 0; key < kKeys; key += 16) {
        prim::MultiplyAddAsync<T, prim::MatrixOrder::kAsIs>(
            out, weights[key / 16], prim::MatrixDescriptor::Behind(b, Shape::Keys::Rows(key)),
            true);
      }
    }
    prim::EndMatrixGroup();
  }

  // One lane arrives for the warp: WaitForMatrices() has ended the products of all its lanes.
  // The buffer is no longer read by this warp.
  static __device__ __forceinline__ void Free(std::uint64_t (&empty)[Shape::kStages],
                                              typename Shape::Ring* place) {
    if (threadIdx.x % prim::kWarpThreads == 0) {
      prim::Arrive(prim::SharedAddress(&empty[place->slot]));
    }
    place->Advance();
  }

  // scores, which are there, become weights.
  __device__ __forceinline__ bool Weigh(Scores& scores, const WgmmaSm90Place& place, int first_key,
                                        float scale, float (&keep)[1][2]) {
    const int lane = threadIdx.x % prim::kWarpThreads;
    const int warp_row = first_row + threadIdx.x / prim::kWarpThreads % 4 * Shape::kWarpRows;
    if (first_key + kKeys > place.SeenBy(warp_row)) {  // not all queries see all keys
      State::template Mask<kKeys>(
          scores, lane, [&](int row) { return place.SeenBy(warp_row + row) - first_key; });
    }
    return state.template WeighScores<kKeys>(scores, scale, keep);
  }

  // The first tile alone; then, for each further tile, its scores and the output of the one before
  // it are in the tensor cores together; the output of the last tile. So `weights` of one tile and
  // `scores` of the next are live at the same time, which the choice of tile sizes allows for
  // (WgmmaSm90TilesOf).
  __device__ __forceinline__ void Run(const PrefillParameters& given, const WgmmaSm90Place& place,
                                      const TileRange& range, const Turns<Shape>& turns) {
    const int tiles = range.count;
    const int first_key = range.first * kKeys;
    prim::WaitForPhase(prim::SharedAddress(&tile.barriers->queries), 0);
    Scores scores;
    float keep[1][2];
    AwaitKeys();
    turns.Begin();
    turns.Take();
    BeginScores(scores);
    turns.Pass(tiles > 1);
    prim::WaitForMatrices<0>();
    prim::KeepInOrder(scores[0]);
    Free(tile.barriers->keys_empty, &keys);
    (void)Weigh(scores, place, first_key, given.scale, keep);  // there is nothing yet to be kept
    Weights weights;
    Round(scores, &weights);
    if (tiles > 1) AwaitKeys();
    // Computes the scores of tile i while the tensor cores add the output of tile i - 1.
    for (int i = 1; i < tiles; ++i) {
      turns.Take();
      BeginScores(scores);
      AwaitValues();
      BeginOut(weights);
      turns.Pass(i + 1 < tiles);
      // The group of the scores has ended; that of the output, begun later, may still run.
      prim::WaitForMatrices<1>();
      prim::KeepInOrder(scores[0]);
      Free(tile.barriers->keys_empty, &keys);
      const bool shrinks = __any_sync(
          prim::kAllLanes, Weigh(scores, place, first_key + i * kKeys, given.scale, keep));
      // Waiting for keys here has a second purpose: without a branch in between, ptxas delays the
      // softmax until the tensor cores have finished, which would serialise the two.
      prim::KeepInOrder(scores[0]);
      if (i + 1 < tiles) AwaitKeys();
      prim::WaitForMatrices<0>();
      prim::KeepInOrder(state.out[0]);
      Free(tile.barriers->values_empty, &values);
      // Only now, since the tensor cores were adding to `out`: weights of tile i - 1 are relative
      // to the former maximum, and are rescaled with the rest.
      if (shrinks) state.Shrink(keep);
      Round(scores, &weights);
    }
    AwaitValues();
    BeginOut(weights);
    prim::WaitForMatrices<0>();
    prim::KeepInOrder(state.out[0]);
  }

  static __device__ __forceinline__ void Round(const Scores& scores, Weights* weights) {
#pragma unroll
    for (int key = 0; key < kKeys; key += 16) {
      (*weights)[key / 16] = State::template Rounded<kKeys>(scores, 0, key);
    }
  }
};

}  // namespace ferry::kernels
