// Kernels that expose single Hopper primitives to tests.

#include <array>
#include <cstdint>

#include "ferry/cuda/launch.cuh"
#include "ferry/cuda/prim/mbarrier.cuh"
#include "ferry/cuda/prim/panel_tile.cuh"
#include "ferry/cuda/prim/tma.cuh"
#include "ferry/cuda/prim/warp_copy.cuh"
#include "ferry/cuda/tensor_map.cuh"
#include "ferry/kernels/testing/hopper_ops.h"

namespace ferry::kernels {

namespace prim = cuda::prim;

// Types have linkage, and functions that only bodies for 90a call are templates: code for other
// GPUs would have them unused, which is a warning.

using CopiedTile = prim::PanelTile<TileArgs::kRows, TileArgs::kColumns>;
using RingTile = prim::PanelTile<RingArgs::kRows, RingArgs::kColumns>;

struct CopyTileParameters {
  CUtensorMap map;
  std::uint8_t* tile;
  int rank;
  int row;
  int z;
  int w;
  bool stores;
};

struct ProductParameters {
  const std::uint8_t* a;
  const std::uint8_t* b;
  float* c;
};

struct RingParameters {
  CUtensorMap map;
  uint4* to;
  int tiles;
};

template <class Tile>
__device__ __forceinline__ Tile AlignedTile(std::uint8_t* shared) {
  return {shared + (0U - prim::SharedAddress(shared)) % Tile::kAlignment};
}

// Rows of 16-byte words, dense in global memory; `first_row` of the tile is the first of them.
template <class Tile>
__device__ __forceinline__ void FillTile(const Tile& tile, int first_row, int rows,
                                         const std::uint8_t* from) {
  for (int i = threadIdx.x; i < rows * Tile::kRowWords; i += blockDim.x) {
    void* const at = tile.At(first_row + i / Tile::kRowWords, i % Tile::kRowWords);
    *static_cast<uint4*>(at) = reinterpret_cast<const uint4*>(from)[i];
  }
}

template <class Tile>
__device__ __forceinline__ void LoadByRank(const CopyTileParameters& given, const Tile& tile,
                                           std::uint32_t barrier) {
  prim::ArriveAndExpect(barrier, Tile::kBytes);
  for (int panel = 0; panel < Tile::kPanels; ++panel) {
    const std::uint32_t to = prim::SharedAddress(tile.data) + panel * Tile::kPanelBytes;
    const int column = panel * Tile::kPanelColumns;
    if (given.rank == 2) prim::LoadTile(to, given.map, barrier, column, given.row);
    if (given.rank == 3) prim::LoadTile(to, given.map, barrier, column, given.row, given.z);
    if (given.rank == 4) {
      prim::LoadTile(to, given.map, barrier, column, given.row, given.z, given.w);
    }
  }
}

template <class Tile>
__device__ __forceinline__ void StoreByRank(const CopyTileParameters& given, const Tile& tile) {
  for (int panel = 0; panel < Tile::kPanels; ++panel) {
    const std::uint32_t from = prim::SharedAddress(tile.data) + panel * Tile::kPanelBytes;
    const int column = panel * Tile::kPanelColumns;
    if (given.rank == 2) prim::StoreTile(given.map, from, column, given.row);
    if (given.rank == 3) prim::StoreTile(given.map, from, column, given.row, given.z);
    if (given.rank == 4) prim::StoreTile(given.map, from, column, given.row, given.z, given.w);
  }
  prim::EndStoreGroup();
  prim::WaitForStoresToRead<0>();
  prim::WaitForStores<0>();
}

__global__ void CopyTileBlock(const __grid_constant__ CopyTileParameters given) {
#ifdef FERRY_HAVE_WARPGROUP_MATRICES
  __shared__ std::uint64_t loaded;
  extern __shared__ std::uint8_t tile_bytes[];
  const auto tile = AlignedTile<CopiedTile>(tile_bytes);
  const std::uint32_t barrier = prim::SharedAddress(&loaded);
  if (given.stores) {
    FillTile(tile, 0, TileArgs::kRows, given.tile);
    prim::PublishToAsyncProxy();
    __syncthreads();
    if (threadIdx.x == 0) StoreByRank(given, tile);
    return;
  }
  if (threadIdx.x == 0) {
    prim::PrefetchTensorMap(given.map);
    prim::InitBarrier(barrier, 1);
    prim::PublishBarriers();
  }
  __syncthreads();
  if (threadIdx.x == 0) LoadByRank(given, tile, barrier);
  prim::WaitForPhase(barrier, 0);
  constexpr int kWords = CopiedTile::kRowWords;
  for (int i = threadIdx.x; i < TileArgs::kRows * kWords; i += blockDim.x) {
    const void* const at = tile.At(i / kWords, i % kWords);
    reinterpret_cast<uint4*>(given.tile)[i] = *static_cast<const uint4*>(at);
  }
#endif
}

// a in the second half of a tile of twice as many rows, as a second warpgroup has it.
template <class T, int kColumns, int kSteps, bool kTransposed, bool kRegisters>
__global__ void ProductBlock(const __grid_constant__ ProductParameters given) {
#ifdef FERRY_HAVE_WARPGROUP_MATRICES
  constexpr int kInner = ProductArgs::kInner;
  constexpr int kFirstRow = ProductArgs::kRows;
  using A = prim::PanelTile<2 * ProductArgs::kRows, kInner>;
  using B = std::conditional_t<kTransposed, prim::PanelTile<kColumns, kInner>,
                               prim::PanelTile<kInner, kColumns>>;
  constexpr auto kOrder = kTransposed ? prim::MatrixOrder::kTransposed : prim::MatrixOrder::kAsIs;
  extern __shared__ std::uint8_t tile_bytes[];
  const auto a = AlignedTile<A>(tile_bytes);
  const B b{a.data + A::kBytes};
  FillTile(a, kFirstRow, ProductArgs::kRows, given.a);
  FillTile(b, 0, B::kBytes / B::kRowWords / prim::kCopyBytes, given.b);
  prim::PublishToAsyncProxy();
  __syncthreads();

  const int row = threadIdx.x / prim::kWarpThreads * 16 + threadIdx.x % prim::kWarpThreads / 4;
  const int place = threadIdx.x % 4;
  prim::FragmentA fragments[kSteps];
#pragma unroll
  for (int k = 0; kRegisters && k < kSteps; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = 16 * k + i / 2 * 8 + 2 * place;
      const void* const at = given.a + ((row + i % 2 * 8) * kInner + column) * 2;
      fragments[k].word[i] = *static_cast<const std::uint32_t*>(at);
    }
  }
  float c[kColumns / 8][4];
  prim::WgmmaFence();
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    std::uint64_t b_word;
    if constexpr (kTransposed) {
      b_word = prim::MatrixDescriptor::Behind(b.RowsFrom(0), B::Columns(16 * k));
    } else {
      b_word = prim::MatrixDescriptor::Behind(b.ColumnsFrom(0), B::Rows(16 * k));
    }
    if constexpr (kRegisters) {
      prim::MultiplyAddAsync<T, kOrder>(c, fragments[k], b_word, k > 0);
    } else {
      prim::MultiplyAddAsync<T, kOrder>(
          c, prim::MatrixDescriptor::Behind(a.RowsFrom(kFirstRow), A::Columns(16 * k)), b_word,
          k > 0);
    }
  }
  prim::EndMatrixGroup();
  prim::WaitForMatrices<0>();
  prim::KeepInOrder(c);
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      given.c[(row + i / 2 * 8) * kColumns + 8 * n + 2 * place + i % 2] = c[n][i];
    }
  }
#endif
}

__global__ void __launch_bounds__(2 * prim::kWarpgroupThreads, 1)
    RingBlock(const __grid_constant__ RingParameters given) {
#ifdef FERRY_HAVE_WARPGROUP_MATRICES
  constexpr int kStages = 2;
  __shared__ std::uint64_t full[kStages];
  __shared__ std::uint64_t empty[kStages];
  extern __shared__ std::uint8_t tile_bytes[];
  const auto first = AlignedTile<RingTile>(tile_bytes);
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < kStages; ++slot) {
      prim::InitBarrier(prim::SharedAddress(&full[slot]), 1);
      prim::InitBarrier(prim::SharedAddress(&empty[slot]), 4);
    }
    prim::PublishBarriers();
  }
  __syncthreads();
  prim::RingPlace<kStages> place;
  if (threadIdx.x < prim::kWarpgroupThreads) {
    prim::DecreaseRegisters<40>();
    if (threadIdx.x != 0) return;
    for (int i = 0; i < given.tiles; ++i) {
      prim::WaitForPhase(prim::SharedAddress(&empty[place.slot]), place.empty());
      const std::uint32_t barrier = prim::SharedAddress(&full[place.slot]);
      prim::ArriveAndExpect(barrier, RingTile::kBytes);
      prim::LoadTile(prim::SharedAddress(first.data) + place.slot * RingTile::kBytes, given.map,
                     barrier, 0, i * static_cast<int>(RingArgs::kRows));
      place.Advance();
    }
  } else {
    prim::TakeRegisters<232>();
    constexpr int kWords = RingTile::kBytes / prim::kCopyBytes;
    for (int i = 0; i < given.tiles; ++i) {
      prim::WaitForPhase(prim::SharedAddress(&full[place.slot]), place.full());
      const RingTile tile{first.data + place.slot * RingTile::kBytes};
      for (int w = threadIdx.x % prim::kWarpgroupThreads; w < kWords;
           w += prim::kWarpgroupThreads) {
        const void* const at = tile.At(w / RingTile::kRowWords, w % RingTile::kRowWords);
        given.to[i * kWords + w] = *static_cast<const uint4*>(at);
      }
      __syncwarp();
      if (threadIdx.x % prim::kWarpThreads == 0) {
        prim::Arrive(prim::SharedAddress(&empty[place.slot]));
      }
      place.Advance();
    }
  }
#endif
}

namespace {

Result<CUtensorMap> RowsMap(const Tensor& tensor, std::int64_t rows) {
  cuda::TensorMapShape shape{.element = tensor.dtype == DType::kFloat16
                                            ? cuda::TensorElement::kFloat16
                                            : cuda::TensorElement::kBfloat16,
                             .data = tensor.data,
                             .rank = tensor.rank};
  shape.tile = {64, static_cast<std::uint32_t>(rows), 1, 1};
  const auto rank = static_cast<std::size_t>(tensor.rank);
  for (std::size_t i = 0; i < rank; ++i) {
    shape.size[i] = static_cast<std::uint64_t>(tensor.shape[rank - 1 - i]);
    shape.stride_bytes[i] = static_cast<std::uint64_t>(tensor.stride[rank - 1 - i]) * 2;
  }
  return cuda::MakeTensorMap(shape);
}

template <class T, int kColumns, int kSteps>
auto ProductBlockOf(const ProductArgs& args) {
  if (args.b_transposed) {
    return args.a_in_registers ? ProductBlock<T, kColumns, kSteps, true, true>
                               : ProductBlock<T, kColumns, kSteps, true, false>;
  }
  return args.a_in_registers ? ProductBlock<T, kColumns, kSteps, false, true>
                             : ProductBlock<T, kColumns, kSteps, false, false>;
}
template <class T, int kColumns>
Status EnqueueProduct(const ProductArgs& args, cuda::StreamRef stream) {
  const auto kernel =
      args.steps == 1 ? ProductBlockOf<T, kColumns, 1>(args) : ProductBlockOf<T, kColumns, 8>(args);
  // Which is compiled with it, and has static shared memory.
  FERRY_TRY(cuda::CheckHopperCode(CopyTileBlock, "product", stream));
  const ProductParameters given{.a = static_cast<const std::uint8_t*>(args.a.data),
                                .b = static_cast<const std::uint8_t*>(args.b.data),
                                .c = static_cast<float*>(args.c.data)};
  constexpr std::size_t kShared =
      (2 * ProductArgs::kRows + kColumns) * ProductArgs::kInner * 2 + CopiedTile::kAlignment;
  return cuda::Launch(stream, "product",
                      {.grid = 1, .block = prim::kWarpgroupThreads, .shared_bytes = kShared},
                      kernel, given);
}

}  // namespace

Status LaunchCopyTile(const TileArgs& args, cuda::StreamRef stream) {
  FERRY_TRY(cuda::CheckHopperCode(CopyTileBlock, "copy_tile", stream));
  CopyTileParameters given{};
  FERRY_TRY_ASSIGN(given.map, RowsMap(args.tensor, TileArgs::kRows));
  given.tile = static_cast<std::uint8_t*>(args.tile.data);
  given.rank = args.tensor.rank;
  given.row = args.row;
  given.z = args.outer[0];
  given.w = args.outer[1];
  given.stores = args.stores;
  return cuda::Launch(
      stream, "copy_tile",
      {.grid = 1, .block = 128, .shared_bytes = CopiedTile::kBytes + CopiedTile::kAlignment},
      CopyTileBlock, given);
}

Status LaunchProduct(const ProductArgs& args, cuda::StreamRef stream) {
  const bool wide = args.c.last() == 128;
  if (args.a.dtype == DType::kBfloat16) {
    return wide ? EnqueueProduct<__nv_bfloat16, 128>(args, stream)
                : EnqueueProduct<__nv_bfloat16, 64>(args, stream);
  }
  return wide ? EnqueueProduct<__half, 128>(args, stream)
              : EnqueueProduct<__half, 64>(args, stream);
}

Status LaunchCopyByRing(const RingArgs& args, cuda::StreamRef stream) {
  FERRY_TRY(cuda::CheckHopperCode(RingBlock, "copy_by_ring", stream));
  RingParameters given{};
  FERRY_TRY_ASSIGN(given.map, RowsMap(args.from, RingArgs::kRows));
  given.to = static_cast<uint4*>(args.to.data);
  given.tiles = static_cast<int>(args.from.shape[0] / RingArgs::kRows);
  return cuda::Launch(stream, "copy_by_ring",
                      {.grid = 1,
                       .block = 2 * prim::kWarpgroupThreads,
                       .shared_bytes = 2 * RingTile::kBytes + RingTile::kAlignment},
                      RingBlock, given);
}

}  // namespace ferry::kernels
