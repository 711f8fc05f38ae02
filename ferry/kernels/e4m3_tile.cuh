// Tiles of e4m3 keys and values for attention: copied as bytes, and converted for the tensor cores.
#pragma once
#include <cstdint>
#include <type_traits>

#include "ferry/cuda/prim/cp_async.cuh"
#include "ferry/cuda/prim/shared_tile.cuh"
#include "ferry/cuda/prim/warp_copy.cuh"
#include "ferry/kernels/attention_tile.cuh"
#include "ferry/kernels/device_number.cuh"

namespace ferry::kernels {

// Two e4m3 numbers, the lower byte first, as a word of T. Both formats hold all of them exactly.
template <class T>
__device__ __forceinline__ std::uint32_t WidenPair(std::uint32_t bytes) {
  const __half2_raw pair =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(bytes), __NV_E4M3);
  const std::uint32_t word = pair.x | std::uint32_t{pair.y} << 16;
  if constexpr (std::is_same_v<T, Float16>) {
    return word;
  } else {
    const float2 numbers = PairOf(word, Float16{});
    return WordOf(numbers.x, numbers.y, T{});
  }
}

// kRows tokens of kHead bytes, row by row without gaps: only whole words are read from it, by
// neighbouring threads, so it needs no other order. kThreads threads share each piece of work.
template <int kHead, int kRows, unsigned kThreads>
struct E4m3Tile {
  using Element = std::uint8_t;
  static constexpr int kRowBytes = kHead;
  static constexpr int kBytes = kRows * kRowBytes;
  static constexpr int kRowWords = kHead / prim::kCopyBytes;
  static constexpr int kRowsAtOnce = static_cast<int>(kThreads) / kRowWords;
  static_assert(kThreads % kRowWords == 0 && kRows % kRowsAtOnce == 0,
                "all threads copy rows each time");

  std::uint8_t* data;

  // Begins the copies. Rows that are not there become zeros.
  __device__ __forceinline__ void Begin(int thread, const SourceRows<std::uint8_t>& rows) const {
    const int row = thread / kRowWords;
    const int word = thread % kRowWords;
    const std::uint32_t to = prim::SharedAddress(data) + thread * prim::kCopyBytes;
    const std::uint8_t* const from = rows.first + row * rows.stride + word * prim::kCopyBytes;
#pragma unroll
    for (int more = 0; more < kRows; more += kRowsAtOnce) {
      prim::CopyAsync(to + more * kHead, from + more * rows.stride, rows.Has(row + more));
    }
  }

  // The same of rows that lie anywhere, as CopyScattered() has them.
  template <class RowAt>
  __device__ __forceinline__ void BeginScattered(int thread, const std::uint8_t* some,
                                                 const RowAt& row_at) const {
    const std::uint32_t to = prim::SharedAddress(data) + thread * prim::kCopyBytes;
#pragma unroll
    for (int more = 0; more < kRows; more += kRowsAtOnce) {
      const std::uint8_t* const from = row_at(thread / kRowWords + more);
      prim::CopyAsync(to + more * kHead,
                      (from != nullptr ? from : some) + thread % kRowWords * prim::kCopyBytes,
                      from != nullptr);
    }
  }

  // By all threads, after the copies. Others see it after a barrier.
  template <class T>
  __device__ __forceinline__ void Widen(const prim::SharedTile<kRows, kHead>& to,
                                        int thread) const {
    constexpr int kWideWords = kHead / 8;
#pragma unroll 4
    for (int i = thread; i < kRows * kWideWords; i += kThreads) {
      const uint2 eight = *static_cast<const uint2*>(static_cast<const void*>(data + 8 * i));
      const uint4 word = {WidenPair<T>(eight.x & 0xffffU), WidenPair<T>(eight.x >> 16),
                          WidenPair<T>(eight.y & 0xffffU), WidenPair<T>(eight.y >> 16)};
      *static_cast<uint4*>(static_cast<void*>(to.At(i / kWideWords, i % kWideWords))) = word;
    }
  }
};

}  // namespace ferry::kernels
