// Asynchronous copies from global to shared memory that bypass registers while the thread
// continues (PTX ISA, "Data Movement and Conversion Instructions: Asynchronous Copy", sm_80).
//
// A thread's copies form groups, and a thread waits for its own groups only. The copied bytes are
// visible to the thread itself after WaitForCopies(), and to other threads after a barrier that
// follows it.
#pragma once
#include <cstdint>

namespace ferry::cuda::prim {

inline constexpr int kCopyBytes = 16;

// The shared-memory address of a pointer, in the form that these instructions take.
__device__ __forceinline__ std::uint32_t SharedAddress(const void* shared) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
}

// cp.async.cg.shared.global: 16 bytes through L2, which fetches 128 bytes at a time. If not
// `present`, nothing is read and zeros are written. Both addresses are multiples of 16.
__device__ __forceinline__ void CopyAsync(std::uint32_t shared, const void* global, bool present) {
  const std::uint32_t bytes = present ? kCopyBytes : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
               :
               : "r"(shared), "l"(global), "r"(bytes)
               : "memory");
}

// cp.async.commit_group: closes a group of the copies since the last call; the group may be empty.
__device__ __forceinline__ void EndCopyGroup() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// cp.async.wait_group: blocks until no more than the last kGroups groups of this thread are in
// flight.
template <int kGroups>
__device__ __forceinline__ void WaitForCopies() {
  static_assert(kGroups >= 0, "a number of groups");
  asm volatile("cp.async.wait_group %0;" : : "n"(kGroups) : "memory");
}

// cp.async.wait_all: blocks until all copies of this thread have ended, those included that are in
// no group yet: EndCopyGroup() and WaitForCopies<0>() in one.
__device__ __forceinline__ void WaitForAllCopies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace ferry::cuda::prim
