// Staged copies by cp.async, by a cuda::pipeline of each thread, and by one of the thread block.
#include <cooperative_groups.h>

#include <cstddef>
#include <cuda/pipeline>

#include "ferry/cuda/launch.cuh"
#include "ferry/cuda/prim/pipeline.cuh"
#include "tools/bench/copies/staged_kernels.h"

namespace ferry::tools {
namespace {

constexpr int kStagedThreads = 256;
constexpr int kTileWords = kStagedTile / sizeof(uint4);
constexpr int kThreadWords = kTileWords / kStagedThreads;

// The tiles of a thread block: blockIdx.x, and every gridDim.x-th one after it.
__device__ __forceinline__ int TilesOfGroup(std::uint32_t tiles) {
  return blockIdx.x < tiles ? static_cast<int>((tiles - blockIdx.x - 1) / gridDim.x + 1) : 0;
}
__device__ __forceinline__ std::size_t FirstWord(int i) {
  return (blockIdx.x + std::size_t{gridDim.x} * i) * kTileWords;
}

// Writes a tile that is in shared memory. Each thread reads words that others have copied there, as
// a kernel that computes would; so all forms need their barriers.
__device__ __forceinline__ void WriteTile(uint4* dst, const uint4* tile) {
#pragma unroll
  for (int j = 0; j < kThreadWords; ++j) {
    const int word = j * kStagedThreads + static_cast<int>(threadIdx.x ^ 32U);
    dst[word] = tile[word];
  }
}

__global__ void __launch_bounds__(kStagedThreads)
    CopyByRegisters(uint4* dst, const uint4* src, std::uint32_t tiles) {
  for (int i = 0; i < TilesOfGroup(tiles); ++i) {
    const std::size_t first = FirstWord(i) + threadIdx.x;
    uint4 held[kThreadWords];
#pragma unroll
    for (int j = 0; j < kThreadWords; ++j) held[j] = src[first + j * kStagedThreads];
#pragma unroll
    for (int j = 0; j < kThreadWords; ++j) dst[first + j * kStagedThreads] = held[j];
  }
}

template <int kStages>
__global__ void __launch_bounds__(kStagedThreads)
    CopyByPtx(uint4* dst, const uint4* src, std::uint32_t tiles) {
  extern __shared__ __align__(128) uint4 ring[];
  cuda::prim::RunPipeline<kStages, cuda::prim::BlockScope>(
      TilesOfGroup(tiles),
      [&](int i, int slot) {
#pragma unroll
        for (int j = 0; j < kThreadWords; ++j) {
          const int word = j * kStagedThreads + static_cast<int>(threadIdx.x);
          cuda::prim::CopyAsync(cuda::prim::SharedAddress(ring + slot * kTileWords + word),
                                src + FirstWord(i) + word, true);
        }
      },
      [&](int i, int slot) { WriteTile(dst + FirstWord(i), ring + slot * kTileWords); });
}

// As RunPipeline(), with CUDA's own names for each of its steps.
template <int kStages>
__global__ void __launch_bounds__(kStagedThreads)
    CopyByThreadPipeline(uint4* dst, const uint4* src, std::uint32_t tiles) {
  extern __shared__ __align__(128) uint4 ring[];
  ::cuda::pipeline<::cuda::thread_scope_thread> pipeline = ::cuda::make_pipeline();
  const int count = TilesOfGroup(tiles);
  const auto load = [&](int i) {
    pipeline.producer_acquire();
    if (i < count) {
#pragma unroll
      for (int j = 0; j < kThreadWords; ++j) {
        const int word = j * kStagedThreads + static_cast<int>(threadIdx.x);
        ::cuda::memcpy_async(ring + i % kStages * kTileWords + word, src + FirstWord(i) + word,
                             ::cuda::aligned_size_t<sizeof(uint4)>(sizeof(uint4)), pipeline);
      }
    }
    pipeline.producer_commit();
  };
  for (int i = 0; i < kStages - 1; ++i) load(i);
  for (int i = 0; i < count; ++i) {
    if constexpr (kStages == 1) {
      if (i > 0) __syncthreads();
      load(i);
      ::cuda::pipeline_consumer_wait_prior<0>(pipeline);
      __syncthreads();
    } else {
      ::cuda::pipeline_consumer_wait_prior<kStages - 2>(pipeline);
      __syncthreads();
      load(i + kStages - 1);
    }
    WriteTile(dst + FirstWord(i), ring + i % kStages * kTileWords);
    pipeline.consumer_release();
  }
}

// The pipeline's own barriers in shared memory take the place of __syncthreads().
template <int kStages>
__global__ void __launch_bounds__(kStagedThreads)
    CopyByBlockPipeline(uint4* dst, const uint4* src, std::uint32_t tiles) {
  extern __shared__ __align__(128) uint4 ring[];
#pragma nv_diag_suppress static_var_with_dynamic_init
  __shared__ ::cuda::pipeline_shared_state<::cuda::thread_scope_block, kStages> state;
  const auto group = cooperative_groups::this_thread_block();
  auto pipeline = ::cuda::make_pipeline(group, &state);
  const int count = TilesOfGroup(tiles);
  const auto load = [&](int i) {
    pipeline.producer_acquire();
    ::cuda::memcpy_async(group, ring + i % kStages * kTileWords, src + FirstWord(i),
                         ::cuda::aligned_size_t<sizeof(uint4)>(kStagedTile), pipeline);
    pipeline.producer_commit();
  };
  int loaded = 0;
  for (int i = 0; i < count; ++i) {
    for (; loaded < count && loaded < i + kStages; ++loaded) load(loaded);
    pipeline.consumer_wait();
    WriteTile(dst + FirstWord(i), ring + i % kStages * kTileWords);
    pipeline.consumer_release();
  }
}

using StagedKernel = void (*)(uint4*, const uint4*, std::uint32_t);

template <int kStages>
StagedKernel KernelOf(StagedForm form) {
  switch (form) {
    case StagedForm::kRegisters: break;
    case StagedForm::kPtx: return CopyByPtx<kStages>;
    case StagedForm::kThreadPipeline: return CopyByThreadPipeline<kStages>;
    case StagedForm::kBlockPipeline: return CopyByBlockPipeline<kStages>;
  }
  return CopyByRegisters;
}

StagedKernel KernelOf(StagedForm form, int stages) {
  switch (stages) {
    case 1: return KernelOf<1>(form);
    case 2: return KernelOf<2>(form);
    default: return KernelOf<kMaxStagedStages>(form);
  }
}

}  // namespace

Status LaunchStaged(cuda::StreamRef stream, const void* arguments) {
  const auto& given = *static_cast<const StagedArguments*>(arguments);
  if (given.stages < 1 || given.stages > kMaxStagedStages) {
    return Error(Code::kInvalidArgument, "a staged copy has 1 to 3 stages");
  }
  const bool staged = given.form != StagedForm::kRegisters;
  return cuda::Launch(stream, kStagedKernel.name,
                      {.grid = given.groups,
                       .block = kStagedThreads,
                       .shared_bytes = staged ? given.stages * kStagedTile : 0},
                      KernelOf(given.form, given.stages), static_cast<uint4*>(given.dst),
                      static_cast<const uint4*>(given.src), given.tiles);
}

}  // namespace ferry::tools
