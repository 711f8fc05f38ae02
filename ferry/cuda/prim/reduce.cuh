// Sums and maxima over the threads of a warp, a group of lanes or a block.
#pragma once
#include <cstdint>

namespace ferry::cuda::prim {

// shfl.sync.bfly (PTX ISA, "shfl.sync"), log2(kThreads) times: over groups of kThreads neighbours,
// a power of two up to 32. All lanes of the warp call it, and each gets the result, the same to the
// last bit.
template <int kThreads = 32>
__device__ __forceinline__ float WarpSum(float value) {
  static_assert(kThreads >= 1 && kThreads <= 32 && (kThreads & (kThreads - 1)) == 0,
                "groups of a warp are powers of two");
#pragma unroll
  for (int apart = kThreads / 2; apart > 0; apart /= 2) {
    value += __shfl_xor_sync(0xffffffffU, value, apart);
  }
  return value;
}
template <int kThreads = 32>
__device__ __forceinline__ float WarpMax(float value) {
  static_assert(kThreads >= 1 && kThreads <= 32 && (kThreads & (kThreads - 1)) == 0,
                "groups of a warp are powers of two");
#pragma unroll
  for (int apart = kThreads / 2; apart > 0; apart /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffU, value, apart));
  }
  return value;
}

// The same for a group size that is known only at run time and is equal in the whole warp.
__device__ __forceinline__ float WarpSum(float value, unsigned threads) {
  for (unsigned apart = threads / 2; apart > 0; apart /= 2) {
    value += __shfl_xor_sync(0xffffffffU, value, static_cast<int>(apart));
  }
  return value;
}
__device__ __forceinline__ float WarpMax(float value, unsigned threads) {
  for (unsigned apart = threads / 2; apart > 0; apart /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffU, value, static_cast<int>(apart)));
  }
  return value;
}

// Over all threads of the block, whole warps, at most 32 of them; each gets the result. `held` is
// 32 floats of shared memory that no thread is using; a __syncthreads() must precede its next use.
__device__ __forceinline__ float BlockSum(float value, float* held) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned warps = blockDim.x / 32;
  value = WarpSum(value);
  if (warps == 1) return value;
  if (lane == 0) held[threadIdx.x / 32] = value;
  __syncthreads();
  return WarpSum(lane < warps ? held[lane] : 0.0F);
}

// The maximum over all threads of the block, with the rules of BlockSum(), of numbers of at least
// 0.
__device__ __forceinline__ float BlockMax(float value, float* held) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned warps = blockDim.x / 32;
  value = WarpMax(value);
  if (warps == 1) return value;
  if (lane == 0) held[threadIdx.x / 32] = value;
  __syncthreads();
  return WarpMax(lane < warps ? held[lane] : 0.0F);
}

// The maximum over all threads of the block, with the rules of BlockSum(); `held` is 32 words.
__device__ __forceinline__ std::uint64_t BlockMax(std::uint64_t value, std::uint64_t* held) {
  const unsigned lane = threadIdx.x % 32;
  const auto over_warp = [](std::uint64_t mine) {
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) {
      const auto other = static_cast<std::uint64_t>(
          __shfl_xor_sync(0xffffffffU, static_cast<unsigned long long>(mine), apart));
      mine = other > mine ? other : mine;
    }
    return mine;
  };
  value = over_warp(value);
  if (lane == 0) held[threadIdx.x / 32] = value;
  __syncthreads();
  return over_warp(lane < blockDim.x / 32 ? held[lane] : 0);
}

}  // namespace ferry::cuda::prim
