// Global memory accesses of 16 bytes, the most that one load or store of a thread moves before
// sm_100.
#pragma once
#include <cstdint>

namespace ferry::cuda::prim {

// ld.global.v4.u32 (PTX ISA, "ld"): the address is a multiple of 16. Sees the thread's own stores,
// so that an op may work in place.
__device__ __forceinline__ uint4 Load16(const void* from) {
  return *static_cast<const uint4*>(from);
}
// st.global.v4.u32 (PTX ISA, "st"): the address is a multiple of 16. Written as assembly because
// the compiler turns some word assignments into four stores and others into generic stores that
// first determine the memory space.
__device__ __forceinline__ void Store16(void* to, const uint4& word) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(__cvta_generic_to_global(to)), "r"(word.x), "r"(word.y), "r"(word.z),
                 "r"(word.w)
               : "memory");
}
// The same if `wanted`, predicated instead of branched: the compiler would move loads of the word
// behind a branch.
__device__ __forceinline__ void Store16If(bool wanted, void* to, const uint4& word) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.u32 p, %5, 0;\n"
      "@p st.global.v4.u32 [%0], {%1, %2, %3, %4};\n"
      "}"
      :
      : "l"(__cvta_generic_to_global(to)), "r"(word.x), "r"(word.y), "r"(word.z), "r"(word.w),
        "r"(static_cast<std::uint32_t>(wanted))
      : "memory");
}
// ld.global.nc.v4.u32 (PTX ISA, "ld.global.nc"): through the read-only cache, for memory that no
// thread writes while the kernel runs and all blocks read, such as weights.
__device__ __forceinline__ uint4 LoadShared16(const void* from) {
  return __ldg(static_cast<const uint4*>(from));
}

// A 16-byte load that the compiler does not move: it would sink a plain load below a branch that
// does not need the value, so that the load would start only once the branch is decided.
__device__ __forceinline__ uint4 LoadAhead16(const void* from) {
  uint4 word;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
               : "l"(from)
               : "memory");
  return word;
}
// The same with ld.global.cs, and st.global.cs (PTX ISA, "Cache Operators"): the caches evict these
// bytes first. For what the kernel accesses once, beside tables that should stay in the L2 cache.
__device__ __forceinline__ uint4 LoadStreamed16(const void* from) {
  uint4 word;
  asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
               : "l"(from)
               : "memory");
  return word;
}
__device__ __forceinline__ void StoreStreamed16(void* to, const uint4& word) {
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(__cvta_generic_to_global(to)), "r"(word.x), "r"(word.y), "r"(word.z),
                 "r"(word.w)
               : "memory");
}
// ld.global.nc, as LoadShared16().
__device__ __forceinline__ std::int32_t LoadSharedAhead(const std::int32_t* from) {
  std::int32_t value;
  asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(value) : "l"(from));
  return value;
}
__device__ __forceinline__ std::int64_t LoadSharedAhead(const std::int64_t* from) {
  std::int64_t value;
  asm volatile("ld.global.nc.s64 %0, [%1];" : "=l"(value) : "l"(from));
  return value;
}

// bar.warp.sync (PTX ISA, "bar.warp.sync"), for what the compiler does not do then: it leaves loads
// before this before it, where it would have them wait for one of them, which it takes to be quick.
__device__ __forceinline__ void IssueLoads() { __syncwarp(); }

}  // namespace ferry::cuda::prim
