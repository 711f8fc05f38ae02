// The kernel that copies block lists.
#include "ferry/copy/block_kernel.h"
#include "ferry/copy/block_rounds.cuh"
#include "ferry/cuda/launch.cuh"
#include "ferry/cuda/prim/warp_copy.cuh"

namespace ferry {
namespace {

template <bool kWords>
__device__ __forceinline__ void CopyBlock(std::uint64_t dst, std::uint64_t src, std::uint64_t len,
                                          unsigned lane) {
  cuda::prim::NoSum none;
  if constexpr (kWords) {
    // Addresses are passed as numbers.
    cuda::prim::CopyWords(reinterpret_cast<uint4*>(dst), reinterpret_cast<const uint4*>(src),
                          len / 16, lane, none);
  } else {
    cuda::prim::WarpCopy(dst, src, len, lane, none);
  }
}

// The word-only form needs half of the registers (56 instead of 116), so twice as many warps fit on
// the GPU.
constexpr int GroupsAtOnce(bool words) { return words ? 4 : 2; }

template <bool kWords>
__global__ void __launch_bounds__(kBlockKernelThreads, GroupsAtOnce(kWords))
    BlockKernel(const PackedBlock* blocks, std::uint32_t count, std::uint64_t dst_shift,
                std::uint64_t src_shift) {
  __shared__ uint4 held[kBlockKernelThreads];
  const unsigned lane = threadIdx.x % cuda::prim::kWarpThreads;
  ForEachBlock(blocks, count, held, [&](std::uint64_t dst, std::uint64_t src, std::uint64_t len) {
    CopyBlock<kWords>(dst + dst_shift, src + src_shift, len, lane);
  });
}

}  // namespace

Status LaunchBlockKernel(cuda::StreamRef stream, const void* arguments) {
  const auto& given = *static_cast<const BlockKernelArguments*>(arguments);
  const cuda::LaunchConfig config{
      .grid = given.groups, .block = kBlockKernelThreads, .early = given.early};
  return cuda::Launch(stream, kBlockKernel.name, config,
                      given.words ? BlockKernel<true> : BlockKernel<false>, given.blocks,
                      given.count, given.dst_shift, given.src_shift);
}

}  // namespace ferry
