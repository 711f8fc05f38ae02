// Thread block clusters: blocks that run at the same time and can access each other's shared memory
// (PTX ISA, "Cluster of Cooperative Thread Arrays", sm_90; LaunchConfig::cluster). On older GPUs a
// block is a cluster of its own.
#pragma once
#include <cstdint>

namespace ferry::cuda::prim {

// %cluster_ctarank, for clusters along x: consecutive blocks have the ranks 0, 1 and so on.
__device__ __forceinline__ std::uint32_t ClusterRank() {
#if __CUDA_ARCH__ >= 900
  std::uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#else
  return 0;
#endif
}
// %cluster_nctarank
__device__ __forceinline__ std::uint32_t ClusterBlocks() {
#if __CUDA_ARCH__ >= 900
  std::uint32_t blocks;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return blocks;
#else
  return 1;
#endif
}

// barrier.cluster.arrive.release and barrier.cluster.wait.acquire: between all threads of all
// blocks; what a thread did before it arrived is seen by all that have waited. Each thread calls
// both, in turn, all lanes of a warp together. No block's shared memory may be accessed before all
// have arrived once, and none may end before the last access to its own.
__device__ __forceinline__ void ClusterArrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void ClusterWait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}

// mapa.u64: the generic address of the same variable in the shared memory of the block of that
// rank.
template <class T>
__device__ __forceinline__ T* InBlock(T* shared, std::uint32_t rank) {
#if __CUDA_ARCH__ >= 900
  std::uint64_t address;
  asm("mapa.u64 %0, %1, %2;" : "=l"(address) : "l"(shared), "r"(rank));
  return reinterpret_cast<T*>(address);
#else
  return shared;
#endif
}

}  // namespace ferry::cuda::prim
