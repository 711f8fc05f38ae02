#pragma once
#include <cstdint>

// Accesses to memory of 16 bytes, the most that one thread's load or store moves before sm_100.
namespace ferry::prim {

// ld.global.v4.u32 (PTX ISA, "ld"): of an address that is a multiple of 16. Sees what this thread
// has stored, so that an op may work in place.
__device__ __forceinline__ uint4 Load16(const void* from) {
  return *static_cast<const uint4*>(from);
}
// st.global.v4.u32 (PTX ISA, "st"): likewise.
__device__ __forceinline__ void Store16(void* to, const uint4& word) {
  *static_cast<uint4*>(to) = word;
}
// ld.global.nc.v4.u32 (PTX ISA, "ld.global.nc"): through the read-only cache, of what nobody writes
// while the kernel runs. For what all blocks read, such as weights.
__device__ __forceinline__ uint4 LoadShared16(const void* from) {
  return __ldg(static_cast<const uint4*>(from));
}

}  // namespace ferry::prim
