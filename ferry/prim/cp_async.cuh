// Asynchronous copies from global to shared memory that bypass registers while the thread
// continues (PTX ISA, "Data Movement and Conversion Instructions: Asynchronous Copy", sm_80).
//
// A thread's copies form groups, and a thread waits for its own groups only. The copied bytes are
// visible to the thread itself after WaitForCopies(), and to other threads after a barrier that
// follows it.
#pragma once
#include <cstdint>

namespace ferry::prim {

inline constexpr int kCopyBytes = 16;

// Where something is within shared memory, as these instructions want it.
__device__ __forceinline__ std::uint32_t SharedAddress(const void* shared) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
}

// cp.async.cg.shared.global: 16 bytes by way of L2, of which L2 fetches 128 at a time. Where they
// are not `present` nothing is read, and zeros are written. Both addresses are multiples of 16.
__device__ __forceinline__ void CopyAsync(std::uint32_t shared, const void* global, bool present) {
  const std::uint32_t bytes = present ? kCopyBytes : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
               :
               : "r"(shared), "l"(global), "r"(bytes)
               : "memory");
}

// cp.async.commit_group: the copies since the last one are a group, be it an empty one.
__device__ __forceinline__ void EndCopyGroup() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// cp.async.wait_group: until no more than the last kGroups groups of this thread are under way.
template <int kGroups>
__device__ __forceinline__ void WaitForCopies() {
  static_assert(kGroups >= 0, "a number of groups");
  asm volatile("cp.async.wait_group %0;" : : "n"(kGroups) : "memory");
}

}  // namespace ferry::prim
