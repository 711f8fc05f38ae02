// Distributes rows of words to thread blocks, for ops that process each word on its own.
#pragma once
#include <cstdint>

#include "ferry/core/result.h"

namespace ferry::kernels {

// A thread block has threads_x by threads_y threads and works on threads_y rows. Each thread
// processes several words of one row, threads_x words apart.
struct RowTiles {
  std::uint32_t rows = 0;
  std::uint32_t words = 0;  // of a row
  std::uint32_t threads_x = 0;
  std::uint32_t threads_y = 0;
  std::uint32_t chunks = 0;  // consecutive blocks per row
  std::uint32_t blocks = 0;  // 0: nothing to launch
};
inline constexpr std::uint32_t kTileThreads = 256;  // at most

// Errors: kInvalidArgument with the name of the op if the grid would need too many blocks.
Result<RowTiles> TileRows(const char* op, std::int64_t rows, std::int64_t words,
                          std::uint32_t words_per_thread);

}  // namespace ferry::kernels
