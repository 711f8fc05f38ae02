// Tests of packing blocks for the copy kernel.
#include "ferry/copy/piece_writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace ferry {
namespace {

PlacedList At(const BlockList& list, std::uint64_t dst, std::uint64_t src) {
  return {list.blocks(), {dst, dst}, {src, src}};
}

std::vector<Block> WriteAll(const PlacedList& list, std::uint64_t longest, std::size_t room) {
  PieceWriter writer(list, longest);
  std::vector<PackedBlock> out(room);
  std::vector<Block> pieces;
  while (!writer.done()) {
    const PackedBlock* const end = writer.Write(out.data(), out.data() + room);
    EXPECT_NE(end, out.data());
    for (const PackedBlock* piece = out.data(); piece != end; ++piece) {
      pieces.push_back(Unpack(*piece));
    }
  }
  EXPECT_TRUE(writer.Check());
  return pieces;
}

TEST(PackedBlock, KeepsAddressesAndLengthsUpToTheirLimits) {
  for (const std::uint64_t address : {std::uint64_t{0}, std::uint64_t{1}, kAddressLimit - 1}) {
    for (const std::uint64_t len : {1ULL, 65'535ULL, 65'536ULL, 65'537ULL, 1ULL << 30}) {
      const Block block{address, kAddressLimit - 1 - address, len};
      EXPECT_EQ(Unpack(Pack(block)), block);
    }
  }
}

TEST(PieceWriter, BlocksAreCutInTheirOrderWhateverTheRoom) {
  std::mt19937_64 random(4);
  BlockList list;
  std::vector<Block> expected;
  constexpr std::uint64_t kLongest = 1000;
  for (int i = 0; i < 500; ++i) {
    Block block{random() % 100'000, random() % 100'000, 1 + random() % (i % 3 == 0 ? 5000 : 1000)};
    list.Add(block);
    while (block.len > 0) {
      const std::uint64_t len = std::min(kLongest, block.len);
      expected.push_back({block.dst + 0x7000, block.src + 0x9000, len});
      block = {block.dst + len, block.src + len, block.len - len};
    }
  }
  for (const std::size_t room : {1U, 2U, 7U, 100U, 10'000U}) {
    EXPECT_EQ(WriteAll(At(list, 0x7000, 0x9000), kLongest, room), expected) << room;
  }
}

TEST(PieceWriter, PlacesMayBeSoFarDownThatOnlyTheSumIsAnAddress) {
  BlockList list;
  list.Add({5000, 9000, 10});
  const auto pieces = WriteAll(At(list, 0x1000 - std::uint64_t{5000}, 7), 100, 4);
  EXPECT_EQ(pieces, (std::vector<Block>{{0x1000, 9007, 10}}));
}

TEST(PieceWriter, AddressesWhereNoMemoryCanBeAreRefused) {
  for (const bool far_dst : {true, false}) {
    BlockList list;
    list.Add({1, 1, 10});
    list.Add({far_dst ? kAddressLimit : 20, far_dst ? 20 : kAddressLimit, 10});
    PackedBlock out[2];
    const PlacedList placed = At(list, 0, 0);
    PieceWriter writer(placed, 100);
    EXPECT_EQ(writer.Write(out, out + 1), out + 1);
    EXPECT_TRUE(writer.Check());
    EXPECT_EQ(writer.Write(out, out + 2), out + 1);
    const Status status = writer.Check();
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code(), Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace ferry
