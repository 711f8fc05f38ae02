// Copies of memory blocks by warps, for kernels.
#pragma once
#include <cstdint>

namespace ferry::cuda::prim {

inline constexpr unsigned kWarpThreads = 32;
inline constexpr unsigned kAllLanes = 0xffffffffU;
// 16-byte words that a thread has in flight at once: a warp has 4 KiB, so that one page is one
// round trip.
inline constexpr int kWordsInFlight = 8;

// The copied bytes are used once, so they need not stay in L1.
__device__ __forceinline__ uint4 LoadOnce(const uint4* from) {
  uint4 word;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
               : "l"(from));
  return word;
}
__device__ __forceinline__ void StoreOnce(uint4* to, const uint4& word) {
  asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(to), "r"(word.x), "r"(word.y), "r"(word.z), "r"(word.w)
               : "memory");
}

// Sees the bytes that a warp copies, in the registers of its lanes. This one ignores them.
struct NoSum {
  // A byte at this offset in the block.
  __device__ __forceinline__ void AddByte(std::uint32_t /*byte*/, std::uint64_t /*at*/) {}
  // The lane's next word. Its words are 32 words apart.
  __device__ __forceinline__ void AddWord(const uint4& /*word*/) {}
  // All words were added; the warp's first one was at this offset in the block.
  __device__ __forceinline__ void EndWords(std::uint64_t /*at*/, std::uint64_t /*words*/,
                                           unsigned /*lane*/) {}
};

// For the unaligned ends of a block and for short blocks: one byte per lane and step. They begin
// `at` bytes into the block.
template <class Sum>
__device__ __forceinline__ void CopyBytes(std::uint8_t* dst, const std::uint8_t* src,
                                          std::uint64_t at, std::uint64_t bytes, unsigned lane,
                                          Sum& sum) {
  for (std::uint64_t i = at + lane; i < at + bytes; i += kWarpThreads) {
    const std::uint8_t byte = src[i];
    dst[i] = byte;
    sum.AddByte(byte, i);
  }
}

// Both aligned to 16 bytes. One loop with conditions rather than one for what is whole and code for
// the rest: half of the registers.
template <class Sum>
__device__ __forceinline__ void CopyWords(uint4* dst, const uint4* src, std::uint64_t words,
                                          unsigned lane, Sum& sum) {
  constexpr unsigned kStep = kWordsInFlight * kWarpThreads;
  dst += lane;
  src += lane;
  for (auto left = static_cast<std::int64_t>(words) - lane; left > 0; left -= kStep) {
    uint4 held[kWordsInFlight];
#pragma unroll
    for (int i = 0; i < kWordsInFlight; ++i) {
      if (left > i * static_cast<int>(kWarpThreads)) held[i] = LoadOnce(src + i * kWarpThreads);
    }
#pragma unroll
    for (int i = 0; i < kWordsInFlight; ++i) {
      if (left > i * static_cast<int>(kWarpThreads)) StoreOnce(dst + i * kWarpThreads, held[i]);
    }
#pragma unroll
    for (int i = 0; i < kWordsInFlight; ++i) {
      if (left > i * static_cast<int>(kWarpThreads)) sum.AddWord(held[i]);
    }
    dst += kStep;
    src += kStep;
  }
}

__device__ __forceinline__ uint4 FromLane(const uint4& word, unsigned lane) {
  return {__shfl_sync(kAllLanes, word.x, lane), __shfl_sync(kAllLanes, word.y, lane),
          __shfl_sync(kAllLanes, word.z, lane), __shfl_sync(kAllLanes, word.w, lane)};
}

// 16 bytes that begin 4 * kQuarter + bits / 8 bytes into `low`, and go on in `high`.
template <int kQuarter>
__device__ __forceinline__ uint4 Joined(const uint4& low, const uint4& high, unsigned bits) {
  const std::uint32_t all[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  return {__funnelshift_r(all[kQuarter], all[kQuarter + 1], bits),
          __funnelshift_r(all[kQuarter + 1], all[kQuarter + 2], bits),
          __funnelshift_r(all[kQuarter + 2], all[kQuarter + 3], bits),
          __funnelshift_r(all[kQuarter + 3], all[kQuarter + 4], bits)};
}

// dst aligned to 16 bytes; its words begin 4 * kQuarter + bits / 8 bytes into those at `src`, which
// is aligned, too, and of which words + 1 are read.
//
// Loads have no conditions: beyond the end they load the last word again, which is not used. A
// condition would leave the registers of some lanes as they were, so that ptxas keeps those of all
// four forms alive at the same time: more than there are on sm_100 and sm_120.
template <int kQuarter, class Sum>
__device__ __forceinline__ void CopyShifted(uint4* dst, const uint4* src, std::uint64_t words,
                                            unsigned bits, unsigned lane, Sum& sum) {
  constexpr int kHeld = kWordsInFlight / 2;
  const unsigned next_lane = (lane + 1) % kWarpThreads;
  for (std::uint64_t base = 0; base < words; base += kHeld * kWarpThreads) {
    uint4 held[kHeld + 1];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      held[i] = LoadOnce(src + min(base + i * kWarpThreads + lane, words));
    }
    // Only the first lane needs the word after these.
    held[kHeld] = LoadOnce(src + min(base + kHeld * kWarpThreads, words));
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      // Lane 31 goes on with what lane 0 has loaded in the next row.
      const uint4 offered = lane == 0 ? held[i + 1] : held[i];
      const uint4 high = FromLane(offered, next_lane);
      const std::uint64_t at = base + i * kWarpThreads + lane;
      if (at < words) {
        const uint4 word = Joined<kQuarter>(held[i], high, bits);
        StoreOnce(dst + at, word);
        sum.AddWord(word);
      }
    }
  }
}

// As CopyShifted() for a shift of 1 to 15 bytes that is chosen at run time: with half of the
// registers, and less in flight.
template <class Sum>
__device__ __forceinline__ void CopyShiftedLean(uint4* dst, const uint4* src, std::uint64_t words,
                                                unsigned shift, unsigned lane, Sum& sum) {
  const bool two = (shift & 8) != 0;
  const bool one = (shift & 4) != 0;
  const unsigned bits = shift % 4 * 8;
#pragma unroll 1
  for (std::uint64_t i = lane; i < words; i += kWarpThreads) {
    const uint4 low = LoadOnce(src + i);
    const uint4 high = LoadOnce(src + i + 1);
    const std::uint32_t at[6] = {two ? low.z : low.x,   two ? low.w : low.y,
                                 two ? high.x : low.z,  two ? high.y : low.w,
                                 two ? high.z : high.x, two ? high.w : high.y};
    const std::uint32_t from[5] = {one ? at[1] : at[0], one ? at[2] : at[1], one ? at[3] : at[2],
                                   one ? at[4] : at[3], one ? at[5] : at[4]};
    const uint4 word = {
        __funnelshift_r(from[0], from[1], bits), __funnelshift_r(from[1], from[2], bits),
        __funnelshift_r(from[2], from[3], bits), __funnelshift_r(from[3], from[4], bits)};
    StoreOnce(dst + i, word);
    sum.AddWord(word);
  }
}

// One warp copies `len` bytes between addresses of global memory, however they are aligned; it
// reads and writes no byte beside them.
// The destination decides the alignment: whole aligned words are stored, and the words of the
// source are shifted into place in registers. Steps: up to 31 bytes one by one, until dst is
// aligned and the word of the source before it lies within the block; whole words; the rest one by
// one. `kLean` is for kernels that copy whole words as a rule, and need their registers for that.
template <bool kLean = false, class Sum>
__device__ __forceinline__ void WarpCopy(std::uint64_t dst_address, std::uint64_t src_address,
                                         std::uint64_t len, unsigned lane, Sum& sum) {
  auto* const dst = reinterpret_cast<std::uint8_t*>(dst_address);
  const auto* const src = reinterpret_cast<const std::uint8_t*>(src_address);
  std::uint64_t head = (16 - (dst_address & 15)) & 15;
  const unsigned shift = static_cast<unsigned>(src_address + head) & 15;
  // The first word that is read begins `shift` bytes before what is needed of it.
  if (head < shift) head += 16;
  if (head + 16 + (shift != 0 ? 16 : 0) > len) {
    return CopyBytes(dst, src, 0, len, lane, sum);
  }
  // The last word that is read ends 16 - shift bytes behind the last byte needed.
  const std::uint64_t beyond = shift != 0 ? 16 - shift : 0;
  const std::uint64_t words = (len - head - beyond) / 16;
  auto* const to = reinterpret_cast<uint4*>(dst + head);
  const auto* const from = reinterpret_cast<const uint4*>(src + head - shift);
  CopyBytes(dst, src, 0, head, lane, sum);
  const unsigned bits = shift % 4 * 8;
  if (shift == 0) {
    CopyWords(to, from, words, lane, sum);
  } else if constexpr (kLean) {
    CopyShiftedLean(to, from, words, shift, lane, sum);
  } else {
    switch (shift / 4) {
      // A template argument, because a register array is indexed by it: an index known only at run
      // time would move the array to local memory.
      case 0: CopyShifted<0>(to, from, words, bits, lane, sum); break;
      case 1: CopyShifted<1>(to, from, words, bits, lane, sum); break;
      case 2: CopyShifted<2>(to, from, words, bits, lane, sum); break;
      default: CopyShifted<3>(to, from, words, bits, lane, sum); break;
    }
  }
  sum.EndWords(head, words, lane);
  const std::uint64_t done = head + words * 16;
  CopyBytes(dst, src, done, len - done, lane, sum);
}

}  // namespace ferry::cuda::prim
