// Copies of tensor tiles by the copy engine, TMA (PTX ISA, "Data Movement and Conversion
// Instructions: cp.async.bulk.tensor", sm_90). A tensor map describes the tensor, the tile sizes
// and the layout in shared memory; the kernel receives it as a __grid_constant__ parameter
// (ferry/cuda/tensor_map.cuh). One thread requests a tile.
//
// Coordinates are those of the first element of the tile, in elements, innermost first; they may
// lie outside the tensor. Elements outside the tensor are loaded as zeros and are not stored; the
// bytes that a barrier counts are always those of the whole tile.
#pragma once
#include <cuda.h>

#include <cstdint>

namespace ferry::cuda::prim {

// prefetch.tensormap: the map is there sooner.
__device__ __forceinline__ void PrefetchTensorMap(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" : : "l"(&map) : "memory");
}

// cp.async.bulk.tensor.{2,3,4}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes, where the
// cluster is this block alone. `shared` and `barrier` are SharedAddress()es, the former a multiple
// of 128, or 1024 for tiles of 128-byte rows that are swizzled. Other accesses to the buffer have
// ended for all who wait for whatever has let this thread come here.
__device__ __forceinline__ void LoadTile(std::uint32_t shared, const CUtensorMap& map,
                                         std::uint32_t barrier, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];"
      :
      : "r"(shared), "l"(&map), "r"(barrier), "r"(x), "r"(y)
      : "memory");
}
__device__ __forceinline__ void LoadTile(std::uint32_t shared, const CUtensorMap& map,
                                         std::uint32_t barrier, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5}], [%2];"
      :
      : "r"(shared), "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z)
      : "memory");
}
__device__ __forceinline__ void LoadTile(std::uint32_t shared, const CUtensorMap& map,
                                         std::uint32_t barrier, int x, int y, int z, int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];"
      :
      : "r"(shared), "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}

// fence.proxy.async.shared::cta: what this thread has written to shared memory in the ordinary way
// is seen by the copy engine, and by wgmma, in whatever comes behind the next barrier or, in this
// thread, behind this.
__device__ __forceinline__ void PublishToAsyncProxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// cp.async.bulk.tensor.{2,3,4}d.global.shared::cta.tile.bulk_group: the other way. The buffer is
// read until WaitForStoresToRead(). Coordinates may be beyond the tensor's end, but not below 0:
// an H200 calls that an illegal instruction.
__device__ __forceinline__ void StoreTile(const CUtensorMap& map, std::uint32_t shared, int x,
                                          int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];"
               :
               : "l"(&map), "r"(shared), "r"(x), "r"(y)
               : "memory");
}
__device__ __forceinline__ void StoreTile(const CUtensorMap& map, std::uint32_t shared, int x,
                                          int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];"
      :
      : "l"(&map), "r"(shared), "r"(x), "r"(y), "r"(z)
      : "memory");
}
__device__ __forceinline__ void StoreTile(const CUtensorMap& map, std::uint32_t shared, int x,
                                          int y, int z, int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];"
      :
      : "l"(&map), "r"(shared), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}

// cp.async.bulk.commit_group: this thread's stores since the last one are a group.
__device__ __forceinline__ void EndStoreGroup() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// cp.async.bulk.wait_group.read: until no more than the last kGroups groups of this thread read
// their buffers still. A block must not end before.
template <int kGroups>
__device__ __forceinline__ void WaitForStoresToRead() {
  asm volatile("cp.async.bulk.wait_group.read %0;" : : "n"(kGroups) : "memory");
}
// cp.async.bulk.wait_group: and until what they write can be seen.
template <int kGroups>
__device__ __forceinline__ void WaitForStores() {
  asm volatile("cp.async.bulk.wait_group %0;" : : "n"(kGroups) : "memory");
}

}  // namespace ferry::cuda::prim
