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

// Shared memory of a thread block, in bytes, for 16-bit numbers: the queries, and each warp's ring
// of K and V tiles.
constexpr int DecodeSharedBytes(int head_size, int stages) noexcept {
  const int row = head_size * 2;
  return kDecodeRows * row + kDecodeWarps * stages * 2 * kDecodeKeys * row;
}

// Number of thread blocks for the `group` heads that share one head of K and V.
constexpr std::int64_t DecodeRowTiles(std::int64_t group) noexcept {
  return (group + kDecodeRows - 1) / kDecodeRows;
}

}  // namespace ferry::kernels
