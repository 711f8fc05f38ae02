// Sizes on which the host code and the decode kernel must agree.
#pragma once
#include <cstdint>

namespace ferry::kernels {

inline constexpr int kDecodeWarps = 4;
inline constexpr int kDecodeThreads = kDecodeWarps * 32;
// Queries per thread block: heads that share K and V.
inline constexpr int kDecodeRows = 16;
// Tokens per tile of a warp. A tile lies within one block of the cache.
inline constexpr int kDecodeKeys = 16;
// Tokens that a thread block processes at once.
inline constexpr int kDecodeStep = kDecodeWarps * kDecodeKeys;

// Bytes of a warp's ring of K and V tiles. Of e4m3 caches the ring has their bytes, and behind it
// lies a tile of each in the format of q, into which a step's tiles are converted.
constexpr int DecodeRingBytes(int head_size, int stages, bool e4m3) noexcept {
  const int wide = 2 * kDecodeKeys * head_size * 2;
  return e4m3 ? stages * wide / 2 + wide : stages * wide;
}

// Shared memory of a thread block, in bytes: the queries, of 16-bit numbers, and each warp's ring.
// With two stages it is the same for both types of caches, which PlanDecode() relies on.
constexpr int DecodeSharedBytes(int head_size, int stages, bool e4m3 = false) noexcept {
  return kDecodeRows * head_size * 2 + kDecodeWarps * DecodeRingBytes(head_size, stages, e4m3);
}
static_assert(DecodeSharedBytes(128, 2, true) == DecodeSharedBytes(128, 2, false));

// Number of thread blocks for the `group` heads that share one head of K and V.
constexpr std::int64_t DecodeRowTiles(std::int64_t group) noexcept {
  return (group + kDecodeRows - 1) / kDecodeRows;
}

}  // namespace ferry::kernels
