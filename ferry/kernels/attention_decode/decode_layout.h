// Sizes on which the host code and the decode kernel must agree.
#pragma once
#include <cstdint>

namespace ferry::kernels {

inline constexpr int kDecodeWarps = 4;
inline constexpr int kDecodeThreads = kDecodeWarps * 32;
// Queries of a thread block: heads that share their K and V.
inline constexpr int kDecodeRows = 16;
// Tokens of a warp's tile. A tile lies in one block of the cache.
inline constexpr int kDecodeKeys = 16;
// Tokens that a thread block takes at once.
inline constexpr int kDecodeStep = kDecodeWarps * kDecodeKeys;

// Of 16-bit numbers: the queries, and each warp's ring of tiles of K and V.
constexpr int DecodeSharedBytes(int head_size, int stages) noexcept {
  const int row = head_size * 2;
  return kDecodeRows * row + kDecodeWarps * stages * 2 * kDecodeKeys * row;
}

// Thread blocks for the heads that share one of K and V.
constexpr std::int64_t DecodeRowTiles(std::int64_t group) noexcept {
  return (group + kDecodeRows - 1) / kDecodeRows;
}

}  // namespace ferry::kernels
