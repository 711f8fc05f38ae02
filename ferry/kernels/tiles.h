// Distributes rows of words to thread blocks, for ops that process each word on its own.
#pragma once
#include <cstdint>

#include "ferry/core/result.h"

namespace ferry::kernels {

// A block has threads_x by threads_y threads and works on threads_y rows, of which each thread has
// some words, threads_x apart.
struct RowTiles {
  std::uint32_t rows = 0;
  std::uint32_t words = 0;  // of a row
  std::uint32_t threads_x = 0;
  std::uint32_t threads_y = 0;
  std::uint32_t chunks = 0;  // blocks to a row, which follow each other
  std::uint32_t blocks = 0;  // 0: nothing is to be done
};
inline constexpr std::uint32_t kTileThreads = 256;  // at most

// Errors: kInvalidArgument, which names the op, where more blocks were needed than a grid has.
Result<RowTiles> TileRows(const char* op, std::int64_t rows, std::int64_t words,
                          std::uint32_t words_per_thread);

}  // namespace ferry::kernels
