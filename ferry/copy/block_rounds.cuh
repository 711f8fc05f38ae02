// Deals the blocks of a thread block's warps out in rounds.
#pragma once
#include <cstdint>

#include "ferry/copy/block_kernel.h"
#include "ferry/cuda/prim/grid_order.cuh"
#include "ferry/cuda/prim/warp_copy.cuh"

namespace ferry {

// The blocks of a thread block's warps in one round are adjacent: each thread reads one of them.
static_assert(kWarpBlocks == cuda::prim::kWarpThreads);

// A thread block's blocks in a round of `here` blocks.
struct GroupShare {
  std::uint32_t first;
  std::uint32_t count;
};
__device__ __forceinline__ GroupShare ShareOfGroup(std::uint32_t warps, std::uint32_t here) {
  const std::uint32_t warp = blockIdx.x * kBlockKernelWarps;
  const std::uint32_t first = ShareOf(warp, warps, here).first;
  return {first, ShareOf(warp + kBlockKernelWarps, warps, here).first - first};
}

__device__ __forceinline__ std::uint32_t BlocksOfRound(std::uint64_t left, std::uint32_t warps) {
  const std::uint64_t most = std::uint64_t{warps} * kWarpBlocks;
  return static_cast<std::uint32_t>(left < most ? left : most);
}

// This thread's block of the round that starts at `base`.
__device__ __forceinline__ uint4 Read(const PackedBlock* blocks, std::uint64_t base,
                                      std::uint64_t count, std::uint32_t warps) {
  const GroupShare share = ShareOfGroup(warps, BlocksOfRound(count - base, warps));
  // Bypasses L1: a list in host memory is rewritten between launches.
  return threadIdx.x < share.count
             ? cuda::prim::LoadOnce(reinterpret_cast<const uint4*>(blocks + base + share.first) +
                                    threadIdx.x)
             : uint4{};
}

__device__ __forceinline__ std::uint64_t Word(std::uint32_t low, std::uint32_t high) {
  return std::uint64_t{high} << 32 | low;
}

// Calls `copy(dst, src, len)` for each block of this warp's share of the list, all lanes together,
// in the order of the list. `held` is shared memory for a thread block.
//
// A list in host memory should be read over the bus by few large requests: a thread block reads the
// blocks of all its warps at once, and those of the next round before it copies the current ones.
template <class Copy>
__device__ __forceinline__ void ForEachBlock(const PackedBlock* blocks, std::uint32_t count,
                                             uint4 (&held)[kBlockKernelThreads], Copy&& copy) {
  constexpr unsigned kAbove = PackedBlock::kAddressBits;
  const std::uint32_t warps = gridDim.x * kBlockKernelWarps;
  uint4 mine = Read(blocks, 0, count, warps);
  cuda::prim::GridDependencySynchronize();
  cuda::prim::LetNextGridBegin();
  for (std::uint64_t base = 0;;) {
    const std::uint32_t here = BlocksOfRound(count - base, warps);
    const WarpShare share = ShareOf(
        blockIdx.x * kBlockKernelWarps + threadIdx.x / cuda::prim::kWarpThreads, warps, here);
    const std::uint32_t first = share.first - ShareOfGroup(warps, here).first;
    held[threadIdx.x] = mine;
    __syncthreads();
    base += here;
    const bool more = base < count;
    if (more) mine = Read(blocks, base, count, warps);
    for (std::uint32_t i = first; i < first + share.count; ++i) {
      const uint4 block = held[i];
      const std::uint64_t dst = Word(block.x, block.y);
      const std::uint64_t src = Word(block.z, block.w);
      const std::uint64_t len = src >> kAbove << PackedBlock::kHalfBits | dst >> kAbove;
      copy(dst & (kAddressLimit - 1), src & (kAddressLimit - 1), len);
    }
    if (!more) break;
    __syncthreads();  // all warps have read `held`
  }
}

}  // namespace ferry
