// The cp.async forms of prefill attention (compute capability 8 and later).

#include <cstdint>
#include <type_traits>

#include "ferry/cuda/launch.cuh"
#include "ferry/kernels/attention_prefill/attention_prefill.h"
#include "ferry/kernels/attention_prefill/prefill_block.cuh"
#include "ferry/kernels/attention_tile.cuh"
#include "ferry/prim/pipeline.cuh"

namespace ferry::kernels {
namespace {

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

enum class TileHalf { kBoth, kKeys, kValues };
template <TileHalf kHalf>
using HalfOf = std::integral_constant<TileHalf, kHalf>;

// Begins copies of a tile of keys and of their values, or of one of them. Sixteen tokens lie in one
// page.
template <class T, class Shape, TileHalf kHalf>
__device__ __forceinline__ void LoadKeys(const PrefillParameters& given, const PrefillPlace& place,
                                         int first_key, const typename Shape::Keys& keys,
                                         const typename Shape::Keys& values) {
  constexpr int kSixteens = Shape::kKeys / 16;
  const bool paged = given.tables != nullptr;
  // CheckPages() has made a page a multiple of 16 tokens.
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
    const int left = there ? place.keys.count - key : 0;
    const int token = paged ? key % given.page : place.keys.first + key;
    const auto rows_of = [&](const PrefillKeys& from) {
      return SourceRows<T>{static_cast<const T*>(from.data) + place.kv_head * from.head_stride +
                               pages[s] * from.page_stride + token * from.token_stride,
                           from.token_stride, left};
    };
    if constexpr (kHalf != TileHalf::kValues) {
      CopySixteen<Shape::kThreads>(keys, s, threadIdx.x, rows_of(given.k));
    }
    if constexpr (kHalf != TileHalf::kKeys) {
      CopySixteen<Shape::kThreads>(values, s, threadIdx.x, rows_of(given.v));
    }
  }
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
template <class T, int kHead, int kStages, bool kApart>
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

  const int tiles = place.TilesOf(Shape::kRows, kKeys);
  // A group before those of the pipeline: it has ended when the first tile is there.
  if (tiles > 0) LoadQueries<T, Shape>(given, place, queries);
  prim::EndCopyGroup();
  State state;
  state.Clear();
  const auto load_half = [&](auto half, int tile, int slot) {
    std::uint8_t* const at = ring + slot * 2 * Keys::kBytes;
    LoadKeys<T, Shape, decltype(half)::value>(given, PlaceToLoad<Shape>(given, place), tile * kKeys,
                                              Keys{at}, Keys{at + Keys::kBytes});
  };
  // Whether no query of this warp sees the tile. The warp still takes part in the barriers of the
  // pipeline.
  const auto is_hidden = [&](int first_key) {
    return first_key >= place.SeenBy(first_row + Shape::kWarpRows - 1);
  };
  using Scores = typename State::template Scores<kKeys>;
  const auto weigh = [&](Scores& scores, int first_key, int slot) {
    const Keys keys{ring + slot * 2 * Keys::kBytes};
    state.Score(scores, queries, keys, first_row, lane);
    if (first_key + kKeys > place.SeenBy(first_row)) {  // not all queries see all keys
      state.template Mask<kKeys>(
          scores, lane, [&](int row) { return place.SeenBy(first_row + row) - first_key; });
    }
    state.template Weigh<kKeys>(scores, given.scale);
  };
  const auto add = [&](const Scores& weights, int slot) {
    const Keys values{ring + slot * 2 * Keys::kBytes + Keys::kBytes};
    state.template Add<kKeys>(weights, values, lane);
  };
  if constexpr (kApart) {
    Scores scores;
    prim::RunPipelineOfHalves<kStages, prim::BlockScope>(
        tiles, [&](int tile, int slot) { load_half(HalfOf<TileHalf::kKeys>(), tile, slot); },
        [&](int tile, int slot) {
          if (!is_hidden(tile * kKeys)) weigh(scores, tile * kKeys, slot);
        },
        [&](int tile, int slot) { load_half(HalfOf<TileHalf::kValues>(), tile, slot); },
        [&](int tile, int slot) {
          if (!is_hidden(tile * kKeys)) add(scores, slot);
        });
  } else {
    prim::RunPipeline<kStages, prim::BlockScope>(
        tiles, [&](int tile, int slot) { load_half(HalfOf<TileHalf::kBoth>(), tile, slot); },
        [&](int tile, int slot) {
          if (is_hidden(tile * kKeys)) return;
          Scores scores;
          weigh(scores, tile * kKeys, slot);
          add(scores, slot);
        });
  }
  StoreOut<T, kHead, Shape>(given, state, queries, first_row);
}

template <class T, int kHead, int kStages, bool kApart>
Status Enqueue(const AttentionPrefillArgs& args, cuda::StreamRef stream) {
  using Shape = PrefillShape<T, kHead, kStages>;
  const std::int64_t tiles = (args.max_seqlen_q + Shape::kRows - 1) / Shape::kRows;
  const dim3 grid(static_cast<unsigned>(args.q.shape[1]), static_cast<unsigned>(tiles),
                  static_cast<unsigned>(args.cu_seqlens_q.shape[0] - 1));
  return cuda::Launch(stream, "attention_prefill",
                      {.grid = grid, .block = Shape::kThreads, .shared_bytes = Shape::kSharedBytes},
                      PrefillKernel<T, kHead, kStages, kApart>, ParametersOf(args));
}

template <class T, bool kApart>
Status EnqueueOfType(const AttentionPrefillArgs& args, cuda::StreamRef stream) {
  // Other numbers of stages are not compiled for these sizes and forms: CheckStages() and
  // PrefillFormOf() have refused them.
  switch (args.q.last()) {
    case 64: return Enqueue<T, 64, 2, kApart>(args, stream);
    case 256: return Enqueue<T, 256, 2, kApart>(args, stream);
    default: break;
  }
  if (args.stages == 1) return Enqueue<T, 128, 1, kApart>(args, stream);
  if constexpr (!kApart) {
    if (args.stages == 3) return Enqueue<T, 128, 3, kApart>(args, stream);
  }
  return Enqueue<T, 128, 2, kApart>(args, stream);
}

template <bool kApart>
Status EnqueueForm(const AttentionPrefillArgs& args, cuda::StreamRef stream) {
  return args.q.dtype == DType::kBfloat16 ? EnqueueOfType<__nv_bfloat16, kApart>(args, stream)
                                          : EnqueueOfType<__half, kApart>(args, stream);
}

}  // namespace

Status LaunchAttentionPrefill(const AttentionPrefillArgs& args, cuda::StreamRef stream) {
  return args.form == PrefillForm::kCpAsyncApart ? EnqueueForm<true>(args, stream)
                                                 : EnqueueForm<false>(args, stream);
}

}  // namespace ferry::kernels
