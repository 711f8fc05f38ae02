// The cp.async form of prefill attention (compute capability 8 and later).

#include <cstdint>
#include <type_traits>

#include "ferry/cuda/launch.cuh"
#include "ferry/cuda/prim/pipeline.cuh"
#include "ferry/kernels/attention_prefill/attention_prefill.h"
#include "ferry/kernels/attention_prefill/prefill_block.cuh"
#include "ferry/kernels/attention_tile.cuh"
#include "ferry/kernels/e4m3_tile.cuh"

namespace ferry::kernels {
namespace {

// What a kernel does beyond plain attention over keys of the format of q.
enum class PrefillKind : std::uint8_t {
  kPlain,
  kExtras,  // window, softcap, sinks, lse and scattered keys
  kE4m3,    // the same over e4m3 keys
};

template <PrefillKind kKind>
using ParametersFor =
    std::conditional_t<kKind == PrefillKind::kE4m3, E4m3PrefillParameters, PrefillParameters>;

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
  using E4m3Keys = E4m3Tile<kHead, kKeys, kThreads>;
  static constexpr int kSharedBytes = Queries::kBytes + kStages * 2 * Keys::kBytes;
  // With e4m3 keys the ring has their bytes, and behind it lies a tile of keys and one of values in
  // the format of q, into which a step's tiles are converted: with two stages as much in all.
  static constexpr int kWideAt = kStages * 2 * E4m3Keys::kBytes;
  static_assert(kStages != 2 || kWideAt + 2 * Keys::kBytes == kStages * 2 * Keys::kBytes);
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

// Begins copies of a tile of keys and of their values. Sixteen tokens lie in one page. Keys before
// first_seen are not read: whatever their memory has become, a weight of 0 times NaN is NaN.
template <class T, class Shape>
__device__ __forceinline__ void LoadKeys(const PrefillParameters& given, const PrefillPlace& place,
                                         int first_key, int first_seen,
                                         const typename Shape::Keys& keys,
                                         const typename Shape::Keys& values) {
  constexpr int kSixteens = Shape::kKeys / 16;
  const bool paged = given.tables != nullptr;
  // A page is a multiple of 16 tokens.
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
    // A page number that is out of range counts as 16 rows of zeros: nothing is read out of bounds.
    const bool there = !paged || (pages[s] >= 0 && pages[s] < given.pages);
    const int end = there ? place.keys.count - key : 0;
    const int begin = max(0, first_seen - key);
    const int token = paged ? key % given.page : place.keys.first + key;
    const auto rows_of = [&](const PrefillKeys& from) {
      return SourceRows<T>{static_cast<const T*>(from.data) + place.kv_head * from.head_stride +
                               pages[s] * from.page_stride + token * from.token_stride,
                           from.token_stride, end, begin};
    };
    CopySixteen<Shape::kThreads>(keys, s, threadIdx.x, rows_of(given.k));
    CopySixteen<Shape::kThreads>(values, s, threadIdx.x, rows_of(given.v));
  }
}

// The same where 16 tokens may lie in several pages: each row's is looked up. Unrolled further, it
// would need more registers than there are.
template <class T, class Shape>
__device__ __forceinline__ void LoadScatteredKeys(const PrefillParameters& given,
                                                  const PrefillPlace& place, int first_key,
                                                  int first_seen, const typename Shape::Keys& keys,
                                                  const typename Shape::Keys& values) {
  using Keys = typename Shape::Keys;
  const int word = static_cast<int>(threadIdx.x) % Keys::kRowWords;
#pragma unroll 1
  for (int row = static_cast<int>(threadIdx.x) / Keys::kRowWords; row < Shape::kKeys;
       row += Shape::kThreads / Keys::kRowWords) {
    const int key = first_key + row;
    const bool seen = key >= first_seen && key < place.keys.count;
    const std::int32_t* const table = given.tables + place.sequence * given.table_stride;
    const int page = seen ? table[key / given.page] : -1;
    const bool there = page >= 0 && page < given.pages;
    const auto copy = [&](const Keys& tile, const PrefillKeys& from) {
      const T* const at = static_cast<const T*>(from.data) + place.kv_head * from.head_stride +
                          (there ? page : 0) * from.page_stride +
                          key % given.page * from.token_stride + word * Keys::kWordElements;
      prim::CopyAsync(prim::SharedAddress(tile.At(row, word)), at, there);
    };
    copy(keys, given.k);
    copy(values, given.v);
  }
}

// The same of e4m3 keys, in any pages or none, as bytes. A thread copies 2 to 4 rows of a tile, so
// that their pages are no more lookups than those of LoadKeys().
template <class Shape>
__device__ __forceinline__ void LoadE4m3Keys(const PrefillParameters& given,
                                             const PrefillPlace& place, int first_key,
                                             int first_seen, const typename Shape::E4m3Keys& keys,
                                             const typename Shape::E4m3Keys& values) {
  using Tile = typename Shape::E4m3Keys;
  constexpr int kTimes = Shape::kKeys / Tile::kRowsAtOnce;
  const int first = first_key + static_cast<int>(threadIdx.x) / Tile::kRowWords;
  const bool paged = given.tables != nullptr;
  int pages[kTimes];  // all looked up before the first is waited for
#pragma unroll
  for (int i = 0; i < kTimes; ++i) {
    const int key = first + i * Tile::kRowsAtOnce;
    const bool seen = key >= first_seen && key < place.keys.count;
    pages[i] = seen && !paged ? 0 : -1;
    if (seen && paged) {
      pages[i] = given.tables[place.sequence * given.table_stride + key / given.page];
      if (pages[i] >= given.pages) pages[i] = -1;  // counts as zeros, as one below 0 does
    }
  }
  const auto copy = [&](const Tile& tile, const PrefillKeys& from) {
    const int word = static_cast<int>(threadIdx.x) % Tile::kRowWords;
    const std::uint8_t* const base = static_cast<const std::uint8_t*>(from.data) +
                                     place.kv_head * from.head_stride + word * prim::kCopyBytes;
    const std::uint32_t to = prim::SharedAddress(tile.data) + threadIdx.x * prim::kCopyBytes;
#pragma unroll
    for (int i = 0; i < kTimes; ++i) {
      const int key = first + i * Tile::kRowsAtOnce;
      const int token = paged ? key % given.page : place.keys.first + key;
      prim::CopyAsync(to + i * Tile::kRowsAtOnce * Tile::kRowBytes,
                      base + max(0, pages[i]) * from.page_stride + token * from.token_stride,
                      pages[i] >= 0);
    }
  };
  copy(keys, given.k);
  copy(values, given.v);
}

// Tiles of e4m3 keys and values in buffer `slot` of the ring.
template <class Shape>
struct E4m3Pair {
  typename Shape::E4m3Keys keys;
  typename Shape::E4m3Keys values;
};
template <class Shape>
__device__ __forceinline__ E4m3Pair<Shape> E4m3TilesOf(std::uint8_t* ring, int slot) {
  using Tile = typename Shape::E4m3Keys;
  std::uint8_t* const at = ring + slot * 2 * Tile::kBytes;
  return {Tile{at}, Tile{at + Tile::kBytes}};
}

// Converts them, by all threads of the thread block, which wait for each other. Nobody reads those
// of the step before any more: RunPipeline() has a barrier between the steps.
template <class T, class Shape>
__device__ __forceinline__ void WidenE4m3Keys(std::uint8_t* ring, int slot) {
  using Keys = typename Shape::Keys;
  std::uint8_t* const wide = ring + Shape::kWideAt;
  const int thread = static_cast<int>(threadIdx.x);
  const auto [keys, values] = E4m3TilesOf<Shape>(ring, slot);
  keys.template Widen<T>(Keys{wide}, thread);
  values.template Widen<T>(Keys{wide + Keys::kBytes}, thread);
  __syncthreads();
}

// The place for the loads of a tile. With three stages on sm_100 it is found anew for each of them:
// kept, it would be spilled, since all 255 registers of a thread are in use.
template <class Shape>
__device__ __forceinline__ PrefillPlace PlaceToLoad([[maybe_unused]] const PrefillParameters& given,
                                                    const PrefillPlace& place) {
#if __CUDA_ARCH__ >= 1000 && __CUDA_ARCH__ < 1200
  if constexpr (Shape::kStages == 3) return PrefillPlace(given, Shape::kRows);
#endif
  return place;
}

// A tile of queries of one head of one sequence; each warp has rows of it for itself, and all share
// the tiles of keys that go by.
// The kinds are apart, since the plain kernel uses all registers of a thread.
template <class T, int kHead, int kStages, PrefillKind kKind>
__global__ void __launch_bounds__(PrefillShape<T, kHead, kStages>::kThreads)
    PrefillKernel(const __grid_constant__ ParametersFor<kKind> given) {
  constexpr bool kExtras = kKind != PrefillKind::kPlain;
  constexpr bool kE4m3 = kKind == PrefillKind::kE4m3;
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

  // Tiles before the first query's window are passed over.
  const int first_seen = kExtras ? place.FirstSeenBy(given, 0) : 0;
  const int first_tile = first_seen / kKeys;
  const int tiles = max(0, place.TilesOf(Shape::kRows, kKeys) - first_tile);
  // A group before those of the pipeline: it has ended when the first tile is there.
  if (tiles > 0) LoadQueries<T, Shape>(given, place, queries);
  prim::EndCopyGroup();
  State state;
  state.Clear();
  const auto load = [&](int tile, int slot) {
    if constexpr (kE4m3) {
      const auto [keys, values] = E4m3TilesOf<Shape>(ring, slot);
      LoadE4m3Keys<Shape>(given, place, (first_tile + tile) * kKeys, first_seen, keys, values);
    } else {
      std::uint8_t* const at = ring + slot * 2 * Keys::kBytes;
      if constexpr (kExtras) {
        if (given.scattered) {
          return LoadScatteredKeys<T, Shape>(given, place, (first_tile + tile) * kKeys, first_seen,
                                             Keys{at}, Keys{at + Keys::kBytes});
        }
      }
      LoadKeys<T, Shape>(given, PlaceToLoad<Shape>(given, place), (first_tile + tile) * kKeys,
                         first_seen, Keys{at}, Keys{at + Keys::kBytes});
    }
  };
  const auto compute = [&](int tile, int slot) {
    if constexpr (kE4m3) WidenE4m3Keys<T, Shape>(ring, slot);
    const int first_key = (first_tile + tile) * kKeys;
    // No query of this warp sees the tile. The warp still takes part in the barriers of the
    // pipeline, which are outside of compute().
    if (first_key >= place.SeenBy(first_row + Shape::kWarpRows - 1)) return;
    const Keys keys{ring + (kE4m3 ? Shape::kWideAt : slot * 2 * Keys::kBytes)};
    const Keys values{keys.data + Keys::kBytes};
    typename State::template Scores<kKeys> scores;
    state.Score(scores, queries, keys, first_row, lane);
    if constexpr (kExtras) {
      if (given.inner_scale > 0) state.template SoftCap<kKeys>(scores, given.inner_scale);
      // The last query of the warp has the latest window.
      if (first_key < place.FirstSeenBy(given, first_row + Shape::kWarpRows - 1)) {
        state.template MaskBefore<kKeys>(scores, lane, [&](int row) {
          return place.FirstSeenBy(given, first_row + row) - first_key;
        });
      }
    }
    if (first_key + kKeys > place.SeenBy(first_row)) {  // not all queries see all keys
      state.template Mask<kKeys>(
          scores, lane, [&](int row) { return place.SeenBy(first_row + row) - first_key; });
    }
    state.template Weigh<kKeys>(scores, given.scale);
    state.template Add<kKeys>(scores, values, lane);
  };
  prim::RunPipeline<kStages, prim::BlockScope>(tiles, load, compute);
  StoreOut<T, kHead, Shape, kExtras>(given, state, queries, first_row);
}

template <class T, int kHead, int kStages, PrefillKind kKind>
Status Enqueue(const AttentionPrefillArgs& args, cuda::StreamRef stream) {
  using Shape = PrefillShape<T, kHead, kStages>;
  const std::int64_t tiles = (args.max_seqlen_q + Shape::kRows - 1) / Shape::kRows;
  const dim3 grid(static_cast<unsigned>(args.q.shape[1]), static_cast<unsigned>(tiles),
                  static_cast<unsigned>(args.cu_seqlens_q.shape[0] - 1));
  ParametersFor<kKind> given{ParametersOf(args)};
  if constexpr (kKind == PrefillKind::kE4m3) given.v_scale = args.v_scale;
  return cuda::Launch(stream, "attention_prefill",
                      {.grid = grid, .block = Shape::kThreads, .shared_bytes = Shape::kSharedBytes},
                      PrefillKernel<T, kHead, kStages, kKind>, given);
}

template <class T, PrefillKind kKind>
Status EnqueueWithTwoStages(const AttentionPrefillArgs& args, cuda::StreamRef stream) {
  switch (args.q.last()) {
    case 64: return Enqueue<T, 64, 2, kKind>(args, stream);
    case 256: return Enqueue<T, 256, 2, kKind>(args, stream);
    default: return Enqueue<T, 128, 2, kKind>(args, stream);
  }
}

// Other numbers of stages are compiled for heads of 128 of the plain kind; the checks have refused
// the others.
template <class T>
Status EnqueueOfType(const AttentionPrefillArgs& args, cuda::StreamRef stream) {
  if (args.k.dtype == DType::kFloat8E4m3) {
    return EnqueueWithTwoStages<T, PrefillKind::kE4m3>(args, stream);
  }
  if (!IsPlain(args)) return EnqueueWithTwoStages<T, PrefillKind::kExtras>(args, stream);
  switch (args.stages) {
    case 1: return Enqueue<T, 128, 1, PrefillKind::kPlain>(args, stream);
    case 3: return Enqueue<T, 128, 3, PrefillKind::kPlain>(args, stream);
    default: return EnqueueWithTwoStages<T, PrefillKind::kPlain>(args, stream);
  }
}

}  // namespace

Status LaunchAttentionPrefill(const AttentionPrefillArgs& args, cuda::StreamRef stream) {
  return args.q.dtype == DType::kBfloat16 ? EnqueueOfType<__nv_bfloat16>(args, stream)
                                          : EnqueueOfType<__half>(args, stream);
}

}  // namespace ferry::kernels
