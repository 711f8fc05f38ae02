// Kernel and launcher of the TMA and wgmma form of prefill attention (compute capability 9.0).

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>

#include "ferry/cuda/launch.cuh"
#include "ferry/cuda/tensor_map.cuh"
#include "ferry/kernels/attention_prefill/attention_prefill.h"
#include "ferry/kernels/attention_prefill/wgmma_sm90_block.cuh"

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

  const PrefillPlace place(all.given, Shape::kRows);
  // The grid has tiles for the longest sequence. The whole block returns, before any barrier is set
  // up.
  if (place.first_query >= place.queries.count) return;
  constexpr std::uint32_t kAlignment = Shape::Queries::kAlignment;
  // Dynamic shared memory is aligned to less than the swizzle's 1024 bytes; kSharedBytes has the
  // slack.
  const WgmmaSm90Tile<Shape> tile{unaligned + (0U - prim::SharedAddress(unaligned)) % kAlignment,
                                  &barriers};
  const int tiles = place.TilesOf(Shape::kRows, Shape::kKeys);
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
    if (tiles > 0 && threadIdx.x < prim::kWarpThreads) {
      LoadTiles<Shape>(all, place, tile, tiles);
      ClearBehindEnd<Shape>(place, tile, tiles);
    }
  } else {
    prim::TakeRegisters<Shape::kGroupRegisters>();
    const int group = role - 1;
    GroupAttention<T, kHead> work{tile, group * Shape::kGroupRows};
    work.state.Clear();
    const Turns<Shape> turns{group};
    if (tiles > 0) work.Run(all.given, place, tiles, turns);
    // All four warps have done with their queries.
    // wgmma reads the queries of all four warps; StoreOut() overwrites this warp's.
    prim::WaitAtNamed(kOutBarrier + group, prim::kWarpgroupThreads);
    const int warp_row =
        group * Shape::kGroupRows + threadIdx.x / prim::kWarpThreads % 4 * Shape::kWarpRows;
    StoreOut<T, kHead, Shape>(all.given, work.state, tile.Queries(), warp_row);
  }
#endif
}

// Innermost first: columns, tokens, heads, pages; tensors that are not paged have one page. For
// boxes of 64 columns of some rows of a head.
Result<CUtensorMap> MapOf(const Tensor& tensor, const Tensor& none_as, int rows) {
  // A map has at least one row. Of no rows nobody loads any.
  const Tensor& there = tensor.Numel() > 0 ? tensor : none_as;
  cuda::TensorMapShape map{.element = there.dtype == DType::kFloat16
                                          ? cuda::TensorElement::kFloat16
                                          : cuda::TensorElement::kBfloat16,
                           .data = there.data,
                           .rank = 4,
                           .size = {static_cast<std::uint64_t>(there.last())},
                           .tile = {64, static_cast<std::uint32_t>(rows), 1, 1}};
  const bool paged = there.rank == 4;
  const std::size_t token = paged ? 1 : 0;
  for (const auto& [to, from] : {std::pair(1, token), std::pair(2, token + 1), std::pair(3, 0UL)}) {
    const bool one = (to == 3 && !paged) || there.shape[from] == 1;
    // The stride of a size of 1 is never used, and may be one that no map can have.
    const std::int64_t stride = one ? there.last() : there.stride[from];
    map.size[to] = one ? 1 : static_cast<std::uint64_t>(there.shape[from]);
    map.stride_bytes[to] = static_cast<std::uint64_t>(stride * SizeOf(there.dtype));
  }
  return cuda::MakeTensorMap(map);
}

template <class T, int kHead>
Status EnqueueWgmmaSm90(const AttentionPrefillArgs& args, cuda::StreamRef stream) {
  using Shape = WgmmaSm90Shape<T, kHead>;
  constexpr const char* kName = "attention_prefill, wgmma_sm90";
  const auto kernel = WgmmaSm90Kernel<T, kHead>;
  FERRY_TRY(cuda::CheckHopperCode(kernel, kName, stream));
  WgmmaSm90Parameters all{};
  all.given = ParametersOf(args);
  FERRY_TRY_ASSIGN(all.q, MapOf(args.q, args.q, Shape::kRows));
  const bool paged = !args.block_tables.none();
  all.box_keys = paged ? std::gcd(static_cast<int>(PageTokens(args)), Shape::kKeys) : Shape::kKeys;
  FERRY_TRY_ASSIGN(all.k, MapOf(args.k, args.q, all.box_keys));
  FERRY_TRY_ASSIGN(all.v, MapOf(args.v, args.q, all.box_keys));
  const std::int64_t tiles = (args.max_seqlen_q + Shape::kRows - 1) / Shape::kRows;
  const dim3 grid(static_cast<unsigned>(args.q.shape[1]), static_cast<unsigned>(tiles),
                  static_cast<unsigned>(args.cu_seqlens_q.shape[0] - 1));
  return cuda::Launch(stream, kName,
                      {.grid = grid, .block = Shape::kThreads, .shared_bytes = Shape::kSharedBytes},
                      kernel, all);
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
