// Tests of layouts and byte patterns of `ferry perf`.

#include "ferry/tools/perf/case.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

namespace ferry::tools {
namespace {

constexpr PerfCase kScattered{.op = Op::kWrite, .size = 1000, .block_size = 64};

std::vector<std::byte> Region(const PerfCase& perf_case) {
  return std::vector<std::byte>(perf_case.RegionBytes());
}

TEST(Layout, OfAContiguousCaseIsOneBlock) {
  const PerfCase whole{.op = Op::kRead, .size = 77, .block_size = 0};
  const Layout layout(whole, 5);
  ASSERT_EQ(layout.blocks(), 1U);
  EXPECT_EQ(layout.offset(0), 0U);
  EXPECT_EQ(layout.bytes(0), 77U);
  EXPECT_EQ(whole.RegionBytes(), 77U);
}

TEST(Layout, PutsEachBlockInASlotOfItsOwn) {
  const Layout layout(kScattered, 5);
  ASSERT_EQ(layout.blocks(), 16U);
  std::set<std::uint64_t> offsets;
  std::uint64_t bytes = 0;
  for (std::uint64_t i = 0; i < layout.blocks(); ++i) {
    offsets.insert(layout.offset(i));
    bytes += layout.bytes(i);
    EXPECT_LE(layout.offset(i) + layout.bytes(i), kScattered.RegionBytes());
  }
  EXPECT_EQ(offsets.size(), 16U);
  EXPECT_EQ(bytes, kScattered.size);
}

TEST(Layout, IsTheSameForTheSameSeedAndAnotherForAnother) {
  const auto offsets = [](std::uint64_t seed) {
    const Layout layout(kScattered, seed);
    std::vector<std::uint64_t> all;
    for (std::uint64_t i = 0; i < layout.blocks(); ++i) all.push_back(layout.offset(i));
    return all;
  };
  EXPECT_EQ(offsets(5), offsets(5));
  EXPECT_NE(offsets(5), offsets(6));
}

TEST(Pattern, FollowsItsBlocksToAnotherLayout) {
  const Layout src(kScattered, 1);
  const Layout dst(kScattered, 2);
  auto from = Region(kScattered);
  auto to = Region(kScattered);
  FillPattern(from, src, 42);
  Poison(to);
  EXPECT_EQ(FindWrongByte(to, dst, 42), 0U);
  const BlockList list = BlocksBetween({dst}, {src});
  EXPECT_TRUE(list.Validate(to.size(), from.size()));
  for (const Block& block : list.blocks()) {
    std::memcpy(to.data() + block.dst, from.data() + block.src, block.len);
  }
  EXPECT_EQ(FindWrongByte(to, dst, 42), std::nullopt);
  EXPECT_NE(FindWrongByte(to, dst, 43), std::nullopt);
}

TEST(Layout, LiesInSlotsThatBeginAtPages) {
  const PerfCase small{.op = Op::kWrite, .size = 8};
  EXPECT_EQ(small.SlotBytes(), 4096U);
  const PerfCase whole{.op = Op::kWrite, .size = 8192};
  EXPECT_EQ(whole.SlotBytes(), 8192U);
  const Layout layout(kScattered, 1);
  const BlockList list = BlocksBetween({layout, 3 * kScattered.SlotBytes()}, {layout});
  for (const Block& block : list.blocks()) EXPECT_EQ(block.dst, block.src + 3 * 4096);
}

TEST(Pattern, NoticesEachSingleWrongByte) {
  const Layout layout(kScattered, 1);
  auto region = Region(kScattered);
  FillPattern(region, layout, 42);
  for (std::uint64_t block = 0; block < layout.blocks(); ++block) {
    std::byte& last = region[layout.offset(block) + layout.bytes(block) - 1];
    last ^= std::byte{1};
    const std::uint64_t at = block * 64 + layout.bytes(block) - 1;
    EXPECT_EQ(FindWrongByte(region, layout, 42), at / 8 * 8);
    last ^= std::byte{1};
  }
}

TEST(Ops, AreReadBackFromTheirNames) {
  for (const Op op : {Op::kWrite, Op::kRead, Op::kSend}) {
    const auto parsed = ParseOp(OpName(op));
    ASSERT_TRUE(parsed);
    EXPECT_EQ(*parsed, op);
  }
  EXPECT_FALSE(ParseOp("Write"));
}

}  // namespace
}  // namespace ferry::tools
