// Exhaustive tests of block lists at small sizes.
#include "ferry/copy/block_list.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <random>
#include <string>

namespace ferry {
namespace {

constexpr std::uint64_t kMaxLength = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

std::string MessageOf(const BlockList& list, std::uint64_t dst_size, std::uint64_t src_size) {
  const Status status = list.Validate(dst_size, src_size);
  if (status) return "";
  EXPECT_EQ(status.error().code(), Code::kInvalidArgument);
  return status.error().message();
}

// Every list of `count` blocks made of the given candidates.
void ForEachList(std::span<const Block> candidates, std::size_t count,
                 const std::function<void(const BlockList&)>& fn,
                 const std::vector<Block>& prefix = {}) {
  if (prefix.size() == count) return fn(BlockList(prefix));
  for (const Block& block : candidates) {
    std::vector<Block> longer = prefix;
    longer.push_back(block);
    ForEachList(candidates, count, fn, longer);
  }
}

using BytePairs = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

void AppendBytes(const Block& block, BytePairs& pairs) {
  for (std::uint64_t i = 0; i < block.len; ++i) pairs.emplace_back(block.dst + i, block.src + i);
}

// The (destination, source) pair of each byte, in the order in which bytes move.
BytePairs BytesOf(const BlockList& list) {
  BytePairs pairs;
  for (const Block& block : list.blocks()) AppendBytes(block, pairs);
  return pairs;
}

TEST(BlockList, CountsBlocksAndBytes) {
  BlockList list;
  EXPECT_TRUE(list.empty());
  list.Add({.dst = 0, .src = 8, .len = 4});
  list.Add({.dst = 4, .src = 0, .len = 5 * kGiB});
  EXPECT_EQ(list.size(), 2u);
  EXPECT_EQ(list.total_bytes(), 5 * kGiB + 4);
  EXPECT_EQ(list[1].src, 0u);
  EXPECT_EQ(BlockList(std::vector<Block>(list.blocks().begin(), list.blocks().end())), list);
  list.Clear();
  EXPECT_EQ(list.total_bytes(), 0u);
}

TEST(BlockList, TotalOfNonsenseStopsAtTheLargestNumber) {
  const BlockList list({{0, 0, kMaxLength}, {0, 0, kMaxLength}, {0, 0, 5}});
  EXPECT_EQ(list.total_bytes(), kMaxLength);
}

TEST(BlockList, AnEmptyListIsRefused) {
  EXPECT_EQ(MessageOf({}, 10, 10), "the list has no blocks; add at least one");
}

TEST(BlockList, AnEmptyBlockIsRefusedNamingIt) {
  EXPECT_EQ(MessageOf(BlockList({{0, 0, 1}, {1, 1, 0}}), 10, 10),
            "block 1 has a length of 0 bytes; leave empty blocks out of the list");
}

TEST(BlockList, BlocksBeyondEitherSideAreRefusedWithTheirBounds) {
  const BlockList list({{0, 0, 1}, {1, 1, 1}, {2, 2, 1}, {100, 36, 64}});
  EXPECT_EQ(MessageOf(list, 164, 100), "");
  EXPECT_EQ(MessageOf(list, 128, 100),
            "block 3 writes bytes 100..164 of a destination of 128 bytes; keep every block inside "
            "it");
  EXPECT_EQ(MessageOf(list, 164, 99),
            "block 3 reads bytes 36..100 of a source of 99 bytes; keep every block inside it");
}

TEST(BlockList, OffsetsThatWrapAroundAreRefused) {
  EXPECT_EQ(MessageOf(BlockList({{kMaxLength - 3, 0, 8}}), kMaxLength, kMaxLength),
            "block 0 writes 8 bytes from byte 18446744073709551612 of the destination, which ends "
            "beyond 64 bits; correct its offset or length");
  EXPECT_EQ(MessageOf(BlockList({{0, 8, kMaxLength - 7}}), kMaxLength, kMaxLength),
            "block 0 reads 18446744073709551608 bytes from byte 8 of the source, which ends beyond "
            "64 bits; correct its offset or length");
  EXPECT_EQ(MessageOf(BlockList({{0, 7, kMaxLength - 7}}), kMaxLength, kMaxLength), "");
}

TEST(BlockList, OverlappingDestinationsAreRefusedNamingBothBlocks) {
  EXPECT_EQ(MessageOf(BlockList({{50, 0, 10}, {0, 0, 10}, {56, 0, 10}}), 100, 100),
            "blocks 0 and 2 both write bytes 56..60 of the destination (block 0 writes 50..60, "
            "block 2 writes 56..66); write each byte once");
  EXPECT_EQ(MessageOf(BlockList({{0, 0, 10}, {4, 20, 2}}), 100, 100),
            "blocks 0 and 1 both write bytes 4..6 of the destination (block 0 writes 0..10, block "
            "1 writes 4..6); write each byte once");
}

TEST(BlockList, OverlappingSourcesAreAccepted) {
  EXPECT_EQ(MessageOf(BlockList({{0, 0, 10}, {10, 0, 10}, {20, 5, 10}}), 30, 15), "");
}

TEST(BlockList, BlocksBeyond4GiBKeepTheirPlace) {
  const BlockList list({{6 * kGiB, 4 * kGiB, 5 * kGiB}, {0, 4 * kGiB, 6 * kGiB}});
  EXPECT_EQ(MessageOf(list, 11 * kGiB, 10 * kGiB), "");
  EXPECT_NE(MessageOf(list, 11 * kGiB - 1, 10 * kGiB), "");
  EXPECT_NE(MessageOf(BlockList({{4 * kGiB, 0, 2}, {4 * kGiB + 1, 2, 1}}), 8 * kGiB, 8), "");
}

// The contract of Validate(), checked by counting how often each byte of the destination is
// written.
bool IsValidByByteMap(const BlockList& list, std::uint64_t dst_size, std::uint64_t src_size) {
  std::vector<int> writes(16, 0);
  for (const Block& block : list.blocks()) {
    if (block.len == 0 || block.dst + block.len > dst_size || block.src + block.len > src_size) {
      return false;
    }
    for (std::uint64_t i = 0; i < block.len; ++i) ++writes[block.dst + i];
  }
  return !list.empty() && *std::max_element(writes.begin(), writes.end()) == 1;
}

TEST(BlockList, ValidationAgreesWithAByteMapOnEverySmallList) {
  std::vector<Block> candidates;
  for (std::uint64_t dst = 0; dst <= 4; ++dst) {
    for (std::uint64_t len = 0; len <= 3; ++len) candidates.push_back({dst, dst % 2, len});
  }
  int accepted = 0;
  for (std::size_t count = 0; count <= 3; ++count) {
    ForEachList(candidates, count, [&](const BlockList& list) {
      const bool valid = IsValidByByteMap(list, 4, 3);
      accepted += valid ? 1 : 0;
      ASSERT_EQ(list.Validate(4, 3).has_value(), valid);
    });
  }
  EXPECT_GT(accepted, 50);
}

TEST(BlockList, MergingJoinsOnlyNeighboursThatContinueOnBothSides) {
  const BlockList list({{0, 100, 10},    // joined by the next two
                        {10, 110, 5},    //
                        {15, 115, 1},    //
                        {16, 200, 4},    // the source jumps
                        {30, 204, 4},    // the destination jumps
                        {26, 200, 4}});  // continues backwards, which does not count
  EXPECT_EQ(list.Merged(), BlockList({{0, 100, 16}, {16, 200, 4}, {30, 204, 4}, {26, 200, 4}}));
  EXPECT_EQ(list.Merged().total_bytes(), list.total_bytes());
  EXPECT_EQ(BlockList().Merged(), BlockList());
}

TEST(BlockList, MergingNeverWrapsALength) {
  const BlockList list({{0, 0, kMaxLength}, {kMaxLength, kMaxLength, 8}});
  EXPECT_EQ(list.Merged(), list);
}

TEST(BlockList, MergingKeepsEveryByteOfEverySmallListAndLeavesNothingToMerge) {
  std::vector<Block> candidates;
  for (std::uint64_t dst = 0; dst < 4; ++dst) {
    for (std::uint64_t src = 0; src < 3; ++src) {
      candidates.push_back({dst, src, 1});
      candidates.push_back({dst, src, 2});
    }
  }
  ForEachList(candidates, 3, [&](const BlockList& list) {
    const BlockList merged = list.Merged();
    ASSERT_EQ(BytesOf(merged), BytesOf(list));
    ASSERT_EQ(merged.Merged(), merged);
    ASSERT_LE(merged.size(), list.size());
  });
}

TEST(BlockList, FromPagesPairsPagesInOrder) {
  const std::uint64_t dst[] = {2, 0, 1};
  const std::uint64_t src[] = {7, 8, 1 << 20};
  const auto list = BlockList::FromPages(dst, src, 16384);
  ASSERT_TRUE(list);
  EXPECT_EQ(
      *list,
      BlockList({{2 * 16384, 7 * 16384, 16384}, {0, 8 * 16384, 16384}, {16384, 16 * kGiB, 16384}}));
  EXPECT_EQ(list->total_bytes(), 3 * 16384u);
}

TEST(BlockList, FromPagesRefusesPagesThatCannotBe) {
  const std::uint64_t two[] = {0, 1};
  const std::uint64_t one[] = {0};
  const std::uint64_t far[] = {kMaxLength / 4096};
  EXPECT_EQ(BlockList::FromPages(two, one, 4096).error().message(),
            "2 destination pages cannot pair with 1 source pages; give as many of one as of the "
            "other");
  EXPECT_EQ(BlockList::FromPages(one, one, 0).error().message(),
            "pages of 0 bytes hold nothing; give the size of a page");
  EXPECT_EQ(BlockList::FromPages(one, far, 4096).error().message(),
            "entry 0 names page 4503599627370495, and with 4096 bytes to a page that ends beyond "
            "64 bits; correct the page number");
  EXPECT_FALSE(BlockList::FromPages(far, one, 4096));
  const std::uint64_t last[] = {kMaxLength / 4096 - 1};
  const auto list = BlockList::FromPages(last, last, 4096);
  ASSERT_TRUE(list);
  EXPECT_EQ(MessageOf(*list, kMaxLength, kMaxLength), "");
}

// All slices, one by one.
std::vector<Slice> Each(const SliceList& list) {
  std::vector<Slice> slices;
  for (std::uint64_t i = 0; i < list.size(); ++i) slices.push_back(list[i]);
  return slices;
}

// Common checks of slices: coverage, order, limits, and that no slice could be longer.
void CheckSlices(const BlockList& list, std::uint64_t slice_bytes, std::uint64_t max_blocks) {
  const auto slices = Each(SplitIntoSlices(list, slice_bytes, max_blocks));
  BytePairs covered;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const Slice& slice = slices[i];
    std::uint64_t bytes = 0;
    std::uint64_t blocks = 0;
    ForEachBlockOfSlice(list, slice, [&](const Block& part) {
      ASSERT_GT(part.len, 0u);
      AppendBytes(part, covered);
      bytes += part.len;
      ++blocks;
    });
    ASSERT_EQ(bytes, slice.bytes);
    ASSERT_EQ(blocks, slice.blocks);
    ASSERT_LE(bytes, slice_bytes);
    ASSERT_LE(blocks, max_blocks);
    const bool full = bytes == slice_bytes || blocks == max_blocks;
    ASSERT_TRUE(full || i + 1 == slices.size());
  }
  ASSERT_EQ(covered, BytesOf(list));
}

void CheckSlicesOfEverySize(const BlockList& list) {
  for (std::uint64_t slice_bytes = 1; slice_bytes <= 9; ++slice_bytes) {
    for (std::uint64_t max_blocks = 1; max_blocks <= 5; ++max_blocks) {
      CheckSlices(list, slice_bytes, max_blocks);
    }
  }
}

TEST(Slices, CoverEverySmallListExactlyWithinTheirLimits) {
  const std::vector<Block> candidates = {{0, 90, 1}, {10, 80, 2}, {20, 70, 3}, {30, 60, 7}};
  for (std::size_t count = 0; count <= 4; ++count) {
    ForEachList(candidates, count, CheckSlicesOfEverySize);
  }
}

TEST(Slices, GrowFromTheFirstAndShrinkToTheLast) {
  BlockList list;
  for (std::uint64_t i = 0; i < 100; ++i) list.Add({100 * i, 100 * i, 7});
  const SliceSizes sizes{.least = 10, .most = 40, .takers = 4};
  const auto slices = Each(SplitIntoSlices(list, sizes, 1000));
  std::uint64_t before = 0;
  for (const Slice& slice : slices) {
    EXPECT_EQ(slice.bytes, std::min(sizes.At(before, 700 - before), 700 - before));
    before += slice.bytes;
  }
  EXPECT_EQ(before, 700u);
  EXPECT_EQ(slices.front().bytes, 10u);
  const auto shorter = [](const Slice& a, const Slice& b) { return a.bytes < b.bytes; };
  const auto longest = std::max_element(slices.begin(), slices.end(), shorter);
  EXPECT_EQ(longest->bytes, 40u);
  EXPECT_TRUE(std::is_sorted(slices.begin(), longest, shorter));
  EXPECT_LE(slices.back().bytes, 10u);
}

TEST(Slices, HaveTheirSizesAlsoAtTheLimitsOf64Bits) {
  const SliceSizes sizes{.least = 1, .most = kMaxLength, .takers = 1};
  EXPECT_EQ(sizes.At(kMaxLength, 0), 1u);
  EXPECT_EQ(sizes.At(0, kMaxLength), 1u);
  EXPECT_EQ(sizes.At(kMaxLength / 2, kMaxLength), kMaxLength / 2);
  EXPECT_EQ(SliceSizes::Equal(5).At(0, kMaxLength), 5u);
}

TEST(Slices, OfAnEmptyListAreNone) { EXPECT_TRUE(SplitIntoSlices({}, 1, 1).empty()); }

TEST(Slices, CutLargeBlocksAndGatherSmallOnes) {
  const BlockList list({{0, 0, 10}, {20, 20, 2}, {30, 30, 2}});
  EXPECT_EQ(Each(SplitIntoSlices(list, 4, 8)),
            (std::vector<Slice>{{.first_block = 0, .offset = 0, .bytes = 4, .blocks = 1},
                                {.first_block = 0, .offset = 4, .bytes = 4, .blocks = 1},
                                {.first_block = 0, .offset = 8, .bytes = 4, .blocks = 2},
                                {.first_block = 2, .offset = 0, .bytes = 2, .blocks = 1}}));
}

TEST(Slices, OfBlocksBeyond4GiBKeep64BitOffsets) {
  const BlockList list({{kGiB, 0, 9 * kGiB}, {0, 20 * kGiB, kGiB}});
  const auto slices = Each(SplitIntoSlices(list, 5 * kGiB, 4));
  ASSERT_EQ(slices.size(), 2u);
  EXPECT_EQ(slices[1].offset, 5 * kGiB);
  std::vector<Block> parts;
  ForEachBlockOfSlice(list, slices[1], [&](const Block& part) { parts.push_back(part); });
  EXPECT_EQ(parts, (std::vector<Block>{{6 * kGiB, 5 * kGiB, 4 * kGiB}, {0, 20 * kGiB, kGiB}}));
  EXPECT_EQ(SplitIntoSlices(list, kMaxLength, kMaxLength).size(), 1u);
}

// Regression: a peer that asked for short slices made the list take memory for each of them.
TEST(Slices, OfOneBlockTakeTheMemoryOfOneHoweverManyTheyAre) {
  const BlockList list({{0, 0, 64 * kGiB + 1}, {100 * kGiB, 100 * kGiB, 64 * kGiB}});
  const SliceList slices = SplitIntoSlices(list, 4096, 8);
  EXPECT_LE(slices.entries(), 5u);
  EXPECT_EQ(slices.size(), (128 * kGiB) / 4096 + 1);
  const std::uint64_t last = slices.size() - 1;
  for (std::uint64_t i = 0; i < last; i += 4096) EXPECT_EQ(slices[i].bytes, 4096u);
  EXPECT_EQ(slices[last].bytes, 1u);
}

TEST(Slices, OfALongShuffledListCoverIt) {
  std::mt19937_64 random(7);
  std::vector<std::uint64_t> dst(2000);
  for (std::size_t i = 0; i < dst.size(); ++i) dst[i] = i;
  std::vector<std::uint64_t> src = dst;
  std::shuffle(dst.begin(), dst.end(), random);
  std::shuffle(src.begin(), src.end(), random);
  const auto list = BlockList::FromPages(dst, src, 48);
  ASSERT_TRUE(list);
  ASSERT_EQ(MessageOf(*list, 2000 * 48, 2000 * 48), "");
  CheckSlices(*list, 1000, 64);
  CheckSlices(*list, 5000, 64);
}

TEST(SlicesDeathTest, OfNoBytesOrAnotherListAbort) {
  const BlockList list({{0, 0, 10}});
  EXPECT_DEATH((void)SplitIntoSlices(list, 0, 1), "check failed");
  EXPECT_DEATH((void)SplitIntoSlices(list, 1, 0), "check failed");
  const Slice foreign{.first_block = 1, .offset = 0, .bytes = 1, .blocks = 1};
  EXPECT_DEATH(ForEachBlockOfSlice(list, foreign, [](const Block&) {}), "check failed");
}

}  // namespace
}  // namespace ferry
