// Tests of layouts and byte patterns of `ferry perf`.

#include "tools/perf/case.h"

#include <gtest/gtest.h>

#include <algorithm>
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

TEST(Pattern, CoversCasesThatAreNoWholeWords) {
  for (std::uint64_t size = 1; size <= 17; ++size) {
    const PerfCase odd{.op = Op::kWrite, .size = size};
    const Layout layout(odd, 3);
    auto region = Region(odd);
    Poison(region);
    FillPattern(region, layout, 42);
    EXPECT_EQ(FindWrongByte(region, layout, 42), std::nullopt) << size;
    region.back() ^= std::byte{0x80};
    EXPECT_EQ(FindWrongByte(region, layout, 42), (size - 1) / 8 * 8) << size;
  }
}

TEST(Pattern, LeavesTheGapsBetweenItsBlocksAlone) {
  const Layout layout(kScattered, 9);
  auto region = Region(kScattered);
  Poison(region);
  const std::byte poison = region.front();
  FillPattern(region, layout, 1);
  std::vector<bool> covered(region.size());
  for (std::uint64_t i = 0; i < layout.blocks(); ++i) {
    std::fill_n(covered.begin() + static_cast<std::ptrdiff_t>(layout.offset(i)), layout.bytes(i),
                true);
  }
  for (std::size_t i = 0; i < region.size(); ++i) {
    ASSERT_TRUE(covered[i] || region[i] == poison) << i;
  }
}

TEST(Pattern, DiffersFromBlockToBlock) {
  const PerfCase blocks{.op = Op::kWrite, .size = 256, .block_size = 64};
  const Layout layout(blocks, 1);
  auto region = Region(blocks);
  FillPattern(region, layout, 42);
  for (std::uint64_t i = 1; i < layout.blocks(); ++i) {
    EXPECT_NE(std::memcmp(&region[layout.offset(0)], &region[layout.offset(i)], 64), 0) << i;
  }
}

TEST(Layout, OfBlocksThatAreTheWholeCaseIsOneBlock) {
  const PerfCase whole{.op = Op::kWrite, .size = 64, .block_size = 64};
  EXPECT_EQ(whole.RegionBytes(), 128U);
  const Layout layout(whole, 7);
  ASSERT_EQ(layout.blocks(), 1U);
  EXPECT_EQ(layout.offset(0), 0U);
  const PerfCase single_bytes{.op = Op::kWrite, .size = 5, .block_size = 1};
  EXPECT_EQ(Layout(single_bytes, 7).blocks(), 5U);
  EXPECT_EQ(single_bytes.RegionBytes(), 10U);
}

TEST(Layout, HoldsNoMoreBlocksThanARunShould) {
  constexpr std::uint64_t kMaxBlocks = std::uint64_t{16} << 20;
  EXPECT_TRUE(CheckBlocks({.op = Op::kWrite, .size = ~std::uint64_t{0}, .block_size = 0}));
  EXPECT_TRUE(CheckBlocks({.op = Op::kWrite, .size = kMaxBlocks * 8, .block_size = 8}));
  const Status too_many = CheckBlocks({.op = Op::kWrite, .size = kMaxBlocks + 1, .block_size = 1});
  ASSERT_FALSE(too_many);
  EXPECT_EQ(too_many.error().code(), Code::kInvalidArgument);
  EXPECT_NE(too_many.error().message().find("16777217 blocks, 16777216 is the most"),
            std::string::npos)
      << too_many.error().message();
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
