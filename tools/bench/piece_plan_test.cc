// Tests of the distribution of pieces over warps.
#include "tools/bench/piece_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "ferry/core/units.h"

namespace ferry::tools {
namespace {

// The bytes that each warp copies, as the kernel assigns them.
std::vector<std::uint64_t> BytesOfWarps(const PiecePlan& plan) {
  const std::uint32_t warps = plan.groups * kBlockKernelWarps;
  std::vector<std::uint64_t> bytes(warps);
  const std::size_t round = std::size_t{warps} * kWarpBlocks;
  for (std::size_t base = 0; base < plan.pieces.size(); base += round) {
    const auto here = static_cast<std::uint32_t>(std::min(round, plan.pieces.size() - base));
    for (std::uint32_t warp = 0; warp < warps; ++warp) {
      const WarpShare share = ShareOf(warp, warps, here);
      EXPECT_LE(share.count, kWarpBlocks);
      for (std::uint32_t i = 0; i < share.count; ++i) {
        bytes[warp] += Unpack(plan.pieces[base + share.first + i]).len;
      }
    }
  }
  return bytes;
}

// Checks that the plan contains each byte of the list once.
void ExpectComplete(const BlockList& list, const PiecePlan& plan) {
  std::vector<Block> pieces;
  for (const PackedBlock& piece : plan.pieces) pieces.push_back(Unpack(piece));
  const auto by_dst = [](const Block& a, const Block& b) { return a.dst < b.dst; };
  std::sort(pieces.begin(), pieces.end(), by_dst);
  std::vector<Block> blocks(list.blocks().begin(), list.blocks().end());
  std::sort(blocks.begin(), blocks.end(), by_dst);
  EXPECT_EQ(BlockList(pieces).Merged(), BlockList(blocks).Merged());
}

BlockList Scattered(std::size_t count, std::uint64_t shortest, std::uint64_t longest) {
  std::mt19937_64 random(count);
  BlockList list;
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t len = shortest + random() % (longest - shortest + 1);
    list.Add({at, 2 * at + 1, len});
    at += len + 1;
  }
  return list;
}

TEST(PiecePlan, HasEveryByteOnceWhateverTheLengths) {
  for (const std::size_t count : {1U, 7U, 8U, 9U, 300U, 5000U}) {
    for (const std::uint64_t longest : {std::uint64_t{1}, 4 * kKiB, 100 * kKiB}) {
      for (const std::uint32_t groups : {1U, 3U, 528U}) {
        const BlockList list = Scattered(count, 1, longest);
        const PiecePlan plan = PlanPieces(list, groups);
        ExpectComplete(list, plan);
        EXPECT_LE(plan.groups, groups);
      }
    }
  }
}

TEST(PiecePlan, SharesDifferByNoMoreThanTwoPieces) {
  for (const std::size_t count : {100U, 3000U, 20'000U}) {
    for (const std::uint32_t groups : {1U, 5U, 528U}) {
      const auto bytes = BytesOfWarps(PlanPieces(Scattered(count, 1, 60 * kKiB), groups));
      const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
      EXPECT_LE(*most - *least, 32 * kKiB) << count << " blocks, " << groups << " groups";
    }
  }
}

TEST(PiecePlan, OneLargeBlockIsForNearlyAllWarps) {
  BlockList list;
  list.Add({3, 8, 64 * kMiB + 5});
  const auto bytes = BytesOfWarps(PlanPieces(list, 528));
  const auto busy = std::count_if(bytes.begin(), bytes.end(), [](auto each) { return each > 0; });
  EXPECT_GT(busy, 500 * 8);
}

TEST(PiecePlan, PagesStayWhole) {
  const PiecePlan plan = PlanPieces(Scattered(16'384, 4 * kKiB, 4 * kKiB), 528);
  EXPECT_EQ(plan.pieces.size(), 16'384U);
}

TEST(PiecePlan, PiecesAreAlignedAsTheirBlocksAre) {
  BlockList list;
  list.Add({3 * 256, 5 * 256, kMiB + 1});
  for (const PackedBlock& packed : PlanPieces(list, 528).pieces) {
    const Block piece = Unpack(packed);
    EXPECT_EQ(piece.dst % 128, 0U);
    EXPECT_EQ(piece.src % 128, 0U);
  }
}

TEST(PiecePlan, NeighboursOnBothSidesAreJoinedWhereverTheyAreInTheList) {
  constexpr std::uint64_t kPages = 64;
  std::vector<std::uint64_t> pages(kPages);
  for (std::uint64_t i = 0; i < kPages; ++i) pages[i] = i * 7 % kPages;
  const auto list = BlockList::FromPages(pages, pages, 100);
  ASSERT_TRUE(list);
  EXPECT_EQ(PlanPieces(*list, 1).pieces.size(), 2U);  // 6400 bytes for eight warps
}

TEST(PiecePlan, VeryLongListsTakeLittleMemory) {
  BlockList list;
  list.Add({0, kAddressLimit / 2, std::uint64_t{1} << 40});
  EXPECT_LE(PlanPieces(list, 528).pieces.size(), std::size_t{1} << 20);
}

}  // namespace
}  // namespace ferry::tools
