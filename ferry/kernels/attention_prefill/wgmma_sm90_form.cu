// Kernel and launcher of the TMA and wgmma form of prefill attention (compute capability 9.0).

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <numeric>

#include "ferry/cuda/launch.cuh"
#include "ferry/cuda/prim/grid_order.cuh"
#include "ferry/cuda/tensor_map.cuh"
#include "ferry/kernels/attention_parts.cuh"
#include "ferry/kernels/attention_prefill/attention_prefill.h"
#include "ferry/kernels/attention_prefill/wgmma_sm90_block.cuh"
#include "ferry/kernels/attention_prefill/wgmma_sm90_place.cuh"

namespace ferry::kernels {
namespace {

// A tile of queries of one head of one sequence.
template <class T, int kHead>
__global__ void __launch_bounds__(WgmmaSm90Shape<T, kHead>::kThreads, 1)
    WgmmaSm90Kernel(const __grid_constant__ WgmmaSm90Parameters all) {
#ifdef FERRY_HAVE_WARPGROUP_MATRICES
  using Shape = WgmmaSm90Shape<T, kHead>;
  extern __shared__ std::uint8_t unaligned[];
  __shared__ WgmmaSm90Barriers<Shape::kStages> barriers;

  const WgmmaSm90Place place(all);
  // The grid has tiles for the longest sequence. The whole block returns, before any barrier is set
  // up.
  if (place.first_query >= place.queries.count) return;
  constexpr std::uint32_t kAlignment = Shape::Queries::kAlignment;
  // Dynamic shared memory is aligned to less than the swizzle's 1024 bytes; kSharedBytes has the
  // slack.
  const WgmmaSm90Tile<Shape> tile{unaligned + (0U - prim::SharedAddress(unaligned)) % kAlignment,
                                  &barriers};
  const TileRange tiles(all, place, Shape::kKeys);
  if (threadIdx.x == 0) {
    prim::PrefetchTensorMap(all.q);
    prim::PrefetchTensorMap(all.k);
    prim::PrefetchTensorMap(all.v);
    tile.Init();
  }
  __syncthreads();
  // The first warpgroup loads, the others compute.
  // The same in all lanes, which the compiler does not know of threadIdx.
  const int role = __shfl_sync(prim::kAllLanes, threadIdx.x / prim::kWarpgroupThreads, 0);
  if (role == 0) {
    prim::DecreaseRegisters<Shape::kLoaderRegisters>();
    const int loader = __shfl_sync(prim::kAllLanes, threadIdx.x / prim::kWarpThreads, 0);
    if (tiles.count > 0) {
      if (threadIdx.x == 0) {
        LoadQueries(all, place, tile.Queries(), prim::SharedAddress(&barriers.queries));
      }
      __syncwarp();
      LoadTiles<Shape>(all, place, tile, tiles, loader);
      // The last load is in flight, and the first warp has nothing else to do.
      if (loader == 0) ClearBehindEnd<Shape>(place, tile, tiles);
    }
  } else {
    prim::TakeRegisters<Shape::kGroupRegisters>();
    const int group = role - 1;
    GroupAttention<T, kHead> work{tile, group * Shape::kGroupRows};
    work.state.Clear();
    const Turns<Shape> turns{group};
    if (tiles.count > 0) work.Run(all.given, place, tiles, turns);
    const int warp_row =
        group * Shape::kGroupRows + threadIdx.x / prim::kWarpThreads % 4 * Shape::kWarpRows;
    if (all.parts.splits > 1) {
      prim::LetNextGridBegin();
      StoreParts<T, kHead>(all, work.state, warp_row);
    } else {
      // wgmma reads the queries of all four warps; StoreRows() overwrites this warp's.
      prim::WaitAtNamed(kOutBarrier + group, prim::kWarpgroupThreads);
      StoreRows<T, kHead, Shape>(all, work.state, tile.Queries(), warp_row);
    }
  }
#endif
}

// Puts the parts together: a thread block for each head of each query, a thread for each four of
// its columns.
template <class T, int kHead>
__global__ void __launch_bounds__(kHead / 4)
    WgmmaSm90Combine(const __grid_constant__ WgmmaSm90Parameters all) {
  prim::GridDependencySynchronize();
  const PrefillParameters& given = all.given;
  const int query = static_cast<int>(blockIdx.x) / all.heads;
  const int head = static_cast<int>(blockIdx.x) % all.heads;
  const TokenRange queries =
      RangeOf(given.q_ends, given.q_ends_stride, static_cast<int>(blockIdx.y), given.queries);
  if (query >= queries.count) return;
  const std::int64_t token = queries.first + query;
  const int column = static_cast<int>(threadIdx.x) * 4;
  const MergedParts row = MergeParts<kHead>(all.parts, token * all.heads + head, column);
  StoreFour(static_cast<T*>(given.out) + token * given.out_token_stride +
                head * given.out_head_stride + column,
            row.out, row.sum == 0 ? 0.0F : 1 / row.sum);
}

// A size of a tensor map, and what a box has of it.
struct MapSize {
  std::int64_t size;
  std::int64_t stride;  // elements
  int box;
};

// `sizes` are those behind the columns, of which a box has 64.
Result<CUtensorMap> MapOf(const Tensor& tensor, std::initializer_list<MapSize> sizes) {
  cuda::TensorMapShape map;
  map.element = tensor.dtype == DType::kFloat16 ? cuda::TensorElement::kFloat16
                                                : cuda::TensorElement::kBfloat16;
  map.data = tensor.data;
  map.size[0] = static_cast<std::uint64_t>(tensor.last());
  map.tile[0] = 64;
  std::size_t d = 1;
  for (const MapSize& one : sizes) {
    // The stride of a size of 1 is never used, and may be one that no map can have.
    const std::int64_t stride = one.size > 1 ? one.stride : tensor.last();
    map.size[d] = static_cast<std::uint64_t>(one.size);
    map.stride_bytes[d] = static_cast<std::uint64_t>(stride * SizeOf(tensor.dtype));
    map.tile[d] = static_cast<std::uint32_t>(one.box);
    ++d;
  }
  map.rank = static_cast<int>(d);
  return cuda::MakeTensorMap(map);
}

// Rows of a tile of queries are heads of a query first, as WgmmaSm90Parameters has them.
Result<CUtensorMap> MapOfQueries(const Tensor& q, int heads, int queries) {
  return MapOf(q, {{q.shape[1], q.stride[1], heads}, {q.shape[0], q.stride[0], queries}});
}

// Tokens, heads, pages; keys that are not paged are one page.
Result<CUtensorMap> MapOfKeys(const Tensor& keys, const Tensor& none_as, int rows) {
  // A map has at least one row. Of no rows nobody loads any.
  const Tensor& there = keys.Numel() > 0 ? keys : none_as;
  const std::size_t token = there.rank == 4 ? 1 : 0;
  return MapOf(there, {{there.shape[token], there.stride[token], rows},
                       {there.shape[token + 1], there.stride[token + 1], 1},
                       {token == 1 ? there.shape[0] : 1, there.stride[0], 1}});
}

template <class Shape>
Result<WgmmaSm90Parameters> WgmmaSm90ParametersOf(const AttentionPrefillArgs& args) {
  WgmmaSm90Parameters all{};
  all.given = ParametersOf(args);
  const bool paged = !args.block_tables.none();
  all.box_keys = paged ? std::gcd(static_cast<int>(PageTokens(args)), Shape::kKeys) : Shape::kKeys;
  all.heads = static_cast<int>(args.q.shape[1]);
  all.tile_heads = PrefillTileHeads(args.max_seqlen_q, all.given.group);
  all.tile_queries = Shape::kRows / all.tile_heads;
  all.heads_inverse =
      (65536U + static_cast<unsigned>(all.tile_heads) - 1) / static_cast<unsigned>(all.tile_heads);
  all.parts = {static_cast<float4*>(args.workspace.data), nullptr, args.splits};
  if (args.splits > 1) {
    const std::int64_t words = args.q.Numel() * args.splits / 4;
    all.parts.sums = static_cast<float2*>(static_cast<void*>(all.parts.outs + words));
  }
  FERRY_TRY_ASSIGN(all.q, MapOfQueries(args.q, all.tile_heads, all.tile_queries));
  FERRY_TRY_ASSIGN(all.k, MapOfKeys(args.k, args.q, all.box_keys));
  FERRY_TRY_ASSIGN(all.v, MapOfKeys(args.v, args.q, all.box_keys));
  return all;
}

template <class T, int kHead>
Status EnqueueWgmmaSm90(const AttentionPrefillArgs& args, cuda::StreamRef stream) {
  using Shape = WgmmaSm90Shape<T, kHead>;
  constexpr const char* kName = "attention_prefill, wgmma_sm90";
  const auto kernel = WgmmaSm90Kernel<T, kHead>;
  FERRY_TRY(cuda::CheckHopperCode(kernel, kName, stream));
  FERRY_TRY_ASSIGN(const WgmmaSm90Parameters all, WgmmaSm90ParametersOf<Shape>(args));
  const std::int64_t tiles = (args.max_seqlen_q + all.tile_queries - 1) / all.tile_queries;
  const auto batch = static_cast<unsigned>(args.cu_seqlens_q.shape[0] - 1);
  const dim3 grid(static_cast<unsigned>(all.heads / all.tile_heads * args.splits),
                  static_cast<unsigned>(tiles), batch);
  FERRY_TRY(cuda::Launch(
      stream, kName, {.grid = grid, .block = Shape::kThreads, .shared_bytes = Shape::kSharedBytes},
      kernel, all));
  if (args.splits == 1) return Ok();
  return cuda::Launch(stream, "attention_prefill, combine",
                      {.grid = dim3(static_cast<unsigned>(args.max_seqlen_q * all.heads), batch),
                       .block = kHead / 4,
                       .early = true},
                      WgmmaSm90Combine<T, kHead>, all);
}

template <class T>
Status EnqueueWgmmaSm90OfType(const AttentionPrefillArgs& args, cuda::StreamRef stream) {
  switch (args.q.last()) {
    case 64: return EnqueueWgmmaSm90<T, 64>(args, stream);
    case 256: return EnqueueWgmmaSm90<T, 256>(args, stream);
    default: return EnqueueWgmmaSm90<T, 128>(args, stream);
  }
}

}  // namespace

bool HasWgmmaSm90Form(cuda::StreamRef stream) {
  return cuda::HasHopperCode(WgmmaSm90Kernel<__nv_bfloat16, 128>, stream);
}

Status LaunchAttentionPrefillByWgmmaSm90(const AttentionPrefillArgs& args, cuda::StreamRef stream) {
  return args.q.dtype == DType::kBfloat16 ? EnqueueWgmmaSm90OfType<__nv_bfloat16>(args, stream)
                                          : EnqueueWgmmaSm90OfType<__half>(args, stream);
}

}  // namespace ferry::kernels
