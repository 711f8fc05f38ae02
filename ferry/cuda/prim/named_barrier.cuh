// Barriers for some warps of a thread block (PTX ISA, "Parallel Synchronization and Communication
// Instructions: bar, barrier"). A block has 16 of them; __syncthreads() is number 0. All lanes of
// a warp call each of these, and `threads`, a multiple of 32, counts whole warps.
#pragma once

namespace ferry::cuda::prim {

// bar.sync: blocks until `threads` threads have arrived, here or by ArriveAtNamed().
__device__ __forceinline__ void WaitAtNamed(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" : : "r"(barrier), "r"(threads) : "memory");
}
// bar.arrive: counts this warp without blocking.
__device__ __forceinline__ void ArriveAtNamed(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" : : "r"(barrier), "r"(threads) : "memory");
}

}  // namespace ferry::cuda::prim
