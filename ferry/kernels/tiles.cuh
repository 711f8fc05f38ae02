// Maps a thread to its words of a tile.
#pragma once
#include "ferry/kernels/tiles.h"

namespace ferry::kernels {

// The words of this thread: word, word + blockDim.x and so on of its row, words_per_thread of them,
// as long as they are below `end`.
struct TilePlace {
  std::uint32_t row;
  std::uint32_t word;
  std::uint32_t end;  // 0 for a row beyond the last
};
__device__ __forceinline__ TilePlace PlaceInTile(const RowTiles& tiles, int words_per_thread) {
  std::uint32_t rows_from = blockIdx.x;
  std::uint32_t chunk = 0;
  if (tiles.chunks > 1) {
    rows_from = blockIdx.x / tiles.chunks;
    chunk = blockIdx.x % tiles.chunks;
  }
  const std::uint32_t row = rows_from * blockDim.y + threadIdx.y;
  const bool there = row < tiles.rows;
  // Row 0 for threads beyond the last row: they compute valid addresses, and `end` keeps them idle.
  return {there ? row : 0, chunk * blockDim.x * words_per_thread + threadIdx.x,
          there ? tiles.words : 0};
}

}  // namespace ferry::kernels
