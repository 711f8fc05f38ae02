// Tests of the distribution of rows to thread blocks.

#include "ferry/kernels/tiles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry::kernels {
namespace {

TEST(RowTiles, CoverAllWordsOfAllRowsWithoutABlockTooMany) {
  for (const std::uint32_t each : {1U, 2U, 4U}) {
    for (const std::int64_t rows : {1, 3, 255, 256, 257, 100'000}) {
      for (std::int64_t words = 1; words < 100'000; words += 1 + words / 7) {
        const auto made = TileRows("op", rows, words, each);
        ASSERT_TRUE(made);
        const RowTiles& tiles = *made;
        ASSERT_LE(tiles.threads_x * tiles.threads_y, kTileThreads);
        ASSERT_EQ(tiles.threads_x * tiles.threads_y % 32, 0U);
        const std::int64_t chunk = std::int64_t{tiles.threads_x} * each;
        ASSERT_GE(chunk * tiles.chunks, words);
        ASSERT_LT(chunk * (tiles.chunks - 1), words);
        const std::int64_t row_blocks = tiles.blocks / tiles.chunks;
        ASSERT_EQ(row_blocks * tiles.chunks, tiles.blocks);
        ASSERT_GE(row_blocks * tiles.threads_y, rows);
        ASSERT_LT((row_blocks - 1) * tiles.threads_y, rows);
      }
    }
  }
}

TEST(RowTiles, OfNothingHaveNoBlocks) {
  EXPECT_EQ(TileRows("op", 0, 5, 2)->blocks, 0U);
  EXPECT_EQ(TileRows("op", 5, 0, 2)->blocks, 0U);
}

TEST(RowTiles, MoreThanAGridAreRefused) {
  const auto made = TileRows("op", 1 << 30, 1 << 20, 2);
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().message(),
              ::testing::HasSubstr("op: 1073741824 rows of 1048576 words are more than a grid"));
}

}  // namespace
}  // namespace ferry::kernels
