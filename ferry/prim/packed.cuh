// Global memory accesses of 16 bytes, the most that one load or store of a thread moves before
// sm_100.
#pragma once
#include <cstdint>

namespace ferry::prim {

// ld.global.v4.u32 (PTX ISA, "ld"): of an address that is a multiple of 16. Sees what this thread
// has stored, so that an op may work in place.
__device__ __forceinline__ uint4 Load16(const void* from) {
  return *static_cast<const uint4*>(from);
}
// st.global.v4.u32 (PTX ISA, "st"): likewise. By its name, since the compiler makes four stores of
// some assignments of words, and of others stores that first ask what memory is meant.
__device__ __forceinline__ void Store16(void* to, const uint4& word) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(__cvta_generic_to_global(to)), "r"(word.x), "r"(word.y), "r"(word.z),
                 "r"(word.w)
               : "memory");
}
// The same if `wanted`, without a branch, behind which the compiler would move loads of the word.
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
// ld.global.nc.v4.u32 (PTX ISA, "ld.global.nc"): through the read-only cache, of what nobody writes
// while the kernel runs. For what all blocks read, such as weights.
__device__ __forceinline__ uint4 LoadShared16(const void* from) {
  return __ldg(static_cast<const uint4*>(from));
}

// The same loads, which the compiler leaves where they are: others it moves behind a branch that
// can do without what they bring, where they begin only when what decides the branch is there.
__device__ __forceinline__ uint4 LoadAhead16(const void* from) {
  uint4 word;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
               : "l"(from)
               : "memory");
  return word;
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

}  // namespace ferry::prim
