// Implements the distribution of rows of words to thread blocks.

#include "ferry/kernels/tiles.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>

namespace ferry::kernels {
namespace {

constexpr std::int64_t kMaxBlocks = (std::int64_t{1} << 31) - 1;

std::int64_t Quotient(std::int64_t value, std::int64_t by) { return (value + by - 1) / by; }

}  // namespace

Result<RowTiles> TileRows(const char* op, std::int64_t rows, std::int64_t words,
                          std::uint32_t words_per_thread) {
  if (rows == 0 || words == 0) return RowTiles{};
  constexpr std::int64_t kWarp = 32;
  // As few blocks to a row as can be, and none of them much larger than its share.
  const std::int64_t chunks = Quotient(words, std::int64_t{kTileThreads} * words_per_thread);
  const std::int64_t share = Quotient(words, chunks * words_per_thread);
  // Less than a warp: a power of two, so that rows do not straddle warps. Otherwise whole warps.
  const std::int64_t threads_x =
      share < kWarp ? static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(share)))
                    : Quotient(share, kWarp) * kWarp;
  const std::int64_t threads_y = std::max<std::int64_t>(kTileThreads / threads_x, 1);
  const std::int64_t row_blocks = Quotient(rows, threads_y);
  if (words > kMaxBlocks || rows > kMaxBlocks || row_blocks > kMaxBlocks / chunks) {
    return Error(Code::kInvalidArgument,
                 fmt::format("{}: {} rows of {} words are more than a grid of blocks has; split "
                             "them over several calls",
                             op, rows, words));
  }
  RowTiles tiles;
  tiles.rows = static_cast<std::uint32_t>(rows);
  tiles.words = static_cast<std::uint32_t>(words);
  tiles.threads_x = static_cast<std::uint32_t>(threads_x);
  tiles.threads_y = static_cast<std::uint32_t>(threads_y);
  tiles.chunks = static_cast<std::uint32_t>(chunks);
  tiles.blocks = static_cast<std::uint32_t>(row_blocks * chunks);
  return tiles;
}

}  // namespace ferry::kernels
