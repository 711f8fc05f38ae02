// Tests that plans cut transfers into slices that cover exactly their blocks.
#include "ferry/transfer/memory/plan.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>

#include "ferry/core/units.h"

namespace ferry::transfer {
namespace {

constexpr std::uint64_t kSliceBytes = 4;
constexpr std::size_t kMemory = 4096;

// One byte of a transfer: its part, its position at the peer, its position here.
struct Moved {
  std::uint32_t part;
  std::uint64_t remote;
  const std::byte* local;
  bool operator==(const Moved&) const = default;
};

std::byte* LocalBase(std::uint32_t part) {
  static std::vector<std::byte> memory(4 * kMemory);
  return memory.data() + part * kMemory;
}

PlanPart Part(std::uint32_t index, BlockList blocks) {
  PlanPart part;
  part.local_base = LocalBase(index);
  part.remote = {.region = 100 + index, .generation = index + 1, .token = 0x1234 + index};
  part.blocks = std::move(blocks);
  return part;
}

std::vector<Moved> Expected(Direction direction, const std::vector<PlanPart>& parts) {
  std::vector<Moved> moved;
  for (std::uint32_t i = 0; i < parts.size(); ++i) {
    for (const Block& block : parts[i].blocks.blocks()) {
      const bool writing = direction == Direction::kWrite;
      for (std::uint64_t at = 0; at < block.len; ++at) {
        moved.push_back({i, (writing ? block.dst : block.src) + at,
                         parts[i].local_base + (writing ? block.src : block.dst) + at});
      }
    }
  }
  return moved;
}

// Expands a slice byte by byte, both from its frame and from its local memory; the two must agree.
struct Seen {
  std::vector<Moved> moved;
  std::size_t blocks = 0;
};

std::vector<const std::byte*> AddressesOf(const std::vector<iovec>& pieces) {
  std::vector<const std::byte*> bytes;
  for (const iovec& piece : pieces) {
    EXPECT_GT(piece.iov_len, 0u);
    for (std::size_t i = 0; i < piece.iov_len; ++i) {
      bytes.push_back(static_cast<const std::byte*>(piece.iov_base) + i);
    }
  }
  return bytes;
}

Seen Look(const Plan& plan, std::uint32_t slice) {
  std::vector<std::byte> meta;
  std::vector<iovec> payload;
  AppendSlice(plan, slice, &meta, &payload);
  std::vector<iovec> pieces{{nullptr, 17}};  // must be replaced
  LocalPieces(plan, slice, &pieces);
  const auto local = AddressesOf(pieces);
  EXPECT_EQ(AddressesOf(payload), local);

  wire::MetaReader reader(meta);
  wire::WriteBody body;
  EXPECT_TRUE(reader.Read(&body));
  const PlanSlice cut = plan.slice(slice);
  EXPECT_EQ(body.slice, slice);
  EXPECT_EQ(body.key.region, 100 + cut.part);
  EXPECT_EQ(body.key.generation, cut.part + 1);
  EXPECT_EQ(body.key.token, 0x1234 + cut.part);
  Seen seen;
  wire::BlockOnWire block;
  while (reader.Read(&block)) {
    ++seen.blocks;
    for (std::uint64_t i = 0; i < block.length && seen.moved.size() < local.size(); ++i) {
      seen.moved.push_back({cut.part, block.offset + i, local[seen.moved.size()]});
    }
  }
  EXPECT_EQ(seen.blocks, body.blocks);
  EXPECT_EQ(seen.moved.size(), local.size());
  EXPECT_EQ(seen.moved.size(), cut.range.bytes);
  EXPECT_TRUE(reader.rest().empty());
  return seen;
}

std::vector<PlanSlice> SlicesOf(const Plan& plan) {
  std::vector<PlanSlice> slices;
  for (std::uint64_t i = 0; i < plan.slice_count; ++i) slices.push_back(plan.slice(i));
  return slices;
}

void ExpectCovers(Direction direction, std::vector<PlanPart> parts, std::uint64_t slice_bytes) {
  const auto expected = Expected(direction, parts);
  const Uuid peer = Uuid::Random();
  const auto plan = MakePlan(direction, peer, std::move(parts), {.slice_bytes = slice_bytes});
  ASSERT_TRUE(plan) << plan.error().ToString();
  EXPECT_EQ((*plan)->direction, direction);
  EXPECT_EQ((*plan)->peer, peer);
  EXPECT_EQ((*plan)->bytes, expected.size());
  std::vector<Moved> moved;
  for (std::uint32_t i = 0; i < (*plan)->slice_count; ++i) {
    const Seen seen = Look(**plan, i);
    EXPECT_GT(seen.moved.size(), 0u);
    EXPECT_LE(seen.moved.size(), slice_bytes);
    moved.insert(moved.end(), seen.moved.begin(), seen.moved.end());
  }
  EXPECT_EQ(moved, expected);
}

// Calls `fn` for every list of up to `most` blocks with lengths 1 to 3 whose sources and
// destinations either continue the previous block or leave a gap.
void ForEachList(std::size_t most, const BlockList& list, const auto& fn) {
  if (!list.empty()) fn(list);
  if (list.size() == most) return;
  const Block last = list.empty() ? Block{} : list[list.size() - 1];
  for (unsigned choice = 0; choice < 12; ++choice) {
    BlockList longer = list;
    longer.Add({.dst = last.dst + last.len + choice / 6,
                .src = last.src + last.len + (choice / 3) % 2,
                .len = 1 + choice % 3});
    ForEachList(most, longer, fn);
  }
}

TEST(Plan, SlicesCoverEverySmallListExactlyInBothDirections) {
  for (std::uint64_t slice_bytes = 1; slice_bytes <= 5; ++slice_bytes) {
    ForEachList(3, {}, [&](const BlockList& list) {
      for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
        ExpectCovers(direction, {Part(0, list)}, slice_bytes);
      }
    });
    if (HasFailure()) FAIL() << "slices of " << slice_bytes << " bytes";
  }
}

TEST(Plan, AWriteNamesTheDestinationToThePeerAndAReadTheSource) {
  BlockList list;
  list.Add({.dst = 100, .src = 200, .len = 3});
  for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
    const auto plan = MakePlan(direction, {}, {Part(0, list)}, {.slice_bytes = kSliceBytes});
    ASSERT_TRUE(plan);
    const Seen seen = Look(**plan, 0);
    const bool writing = direction == Direction::kWrite;
    EXPECT_EQ(seen.moved.front().remote, writing ? 100u : 200u);
    EXPECT_EQ(seen.moved.front().local, LocalBase(0) + (writing ? 200 : 100));
  }
}

TEST(Plan, ASliceNeverCrossesAPart) {
  BlockList list;
  list.Add({.dst = 0, .src = 0, .len = 6});
  std::vector<PlanPart> parts{Part(0, list), Part(1, list), Part(2, list)};
  const auto plan = MakePlan(Direction::kWrite, {}, parts, {.slice_bytes = kSliceBytes});
  ASSERT_TRUE(plan);
  std::vector<std::pair<std::uint32_t, std::uint64_t>> cuts;
  for (const PlanSlice& slice : SlicesOf(**plan)) cuts.emplace_back(slice.part, slice.range.bytes);
  const std::vector<std::pair<std::uint32_t, std::uint64_t>> expected{{0, 4}, {0, 2}, {1, 4},
                                                                      {1, 2}, {2, 4}, {2, 2}};
  EXPECT_EQ(cuts, expected);
  ExpectCovers(Direction::kWrite, parts, kSliceBytes);
  ExpectCovers(Direction::kRead, parts, kSliceBytes);
}

TEST(Plan, AWriteThroughStagingSlotsBeginsAndEndsWithSmallerSlices) {
  BlockList list;
  list.Add({.dst = 0, .src = 0, .len = 64 * kMiB});
  PlanPart part = Part(0, list);
  part.most_slice = 256 * kKiB;
  const PlanLimits limits{.slice_bytes = kMiB, .lanes = 16};
  const auto bytes_of = [&](Direction direction) {
    const auto plan = MakePlan(direction, {}, {part}, limits);
    std::vector<std::uint64_t> bytes;
    for (const PlanSlice& slice : SlicesOf(**plan)) bytes.push_back(slice.range.bytes);
    EXPECT_EQ((*plan)->slice_bytes, 256 * kKiB);
    return bytes;
  };
  const auto writes = bytes_of(Direction::kWrite);
  EXPECT_EQ(writes.front(), 128 * kKiB);
  EXPECT_EQ(writes[writes.size() / 2], 256 * kKiB);
  EXPECT_EQ(writes.back(), 128 * kKiB);
  EXPECT_LT(writes.size(), 64U * 4 + 2 * 2 * 16);
  EXPECT_EQ(bytes_of(Direction::kRead), std::vector<std::uint64_t>(256, 256 * kKiB));
}

TEST(Plan, SmallerSlicesDoNotDependOnTheSettingForHostMemory) {
  BlockList list;
  list.Add({.dst = 0, .src = 0, .len = 64 * kMiB});
  PlanPart part = Part(0, list);
  for (const std::uint64_t most_slice : {kMiB, 2 * kMiB}) {
    part.most_slice = most_slice;
    const auto plan = MakePlan(Direction::kWrite, {}, {part}, {.slice_bytes = kMiB, .lanes = 16});
    ASSERT_TRUE(plan);
    EXPECT_EQ((*plan)->slice(0).range.bytes, 128 * kKiB) << most_slice;
    EXPECT_EQ((*plan)->slice((*plan)->slice_count - 1).range.bytes, 128 * kKiB) << most_slice;
    EXPECT_EQ((*plan)->slice_bytes, kMiB);
  }
  part.most_slice = ~std::uint64_t{0};  // host memory on both sides
  const auto plan = MakePlan(Direction::kWrite, {}, {part}, {.slice_bytes = kMiB, .lanes = 16});
  ASSERT_TRUE(plan);
  EXPECT_EQ((*plan)->slice_count, 64U);
}

TEST(Plan, NeighboursAreMergedIntoOneBlockOnTheWire) {
  BlockList list;
  for (std::uint64_t i = 0; i < 8; ++i) list.Add({.dst = 10 + i, .src = 20 + i, .len = 1});
  const auto plan = MakePlan(Direction::kWrite, {}, {Part(0, list)}, {.slice_bytes = 64});
  ASSERT_TRUE(plan);
  ASSERT_EQ((*plan)->slice_count, 1u);
  EXPECT_EQ(Look(**plan, 0).blocks, 1u);
}

TEST(Plan, LocalNeighboursBecomeOnePieceEvenWhereTheRemoteSideIsScattered) {
  BlockList list;
  for (std::uint64_t i = 0; i < 8; ++i) list.Add({.dst = 100 * i, .src = i, .len = 1});
  const auto plan = MakePlan(Direction::kWrite, {}, {Part(0, list)}, {.slice_bytes = 64});
  ASSERT_TRUE(plan);
  std::vector<iovec> pieces;
  LocalPieces(**plan, 0, &pieces);
  EXPECT_EQ(pieces.size(), 1u);
  EXPECT_EQ(Look(**plan, 0).blocks, 8u);
}

TEST(Plan, AFrameNeverHasMoreBlocksThanItsMetadataHolds) {
  BlockList list;
  for (std::uint64_t i = 0; i < 2 * wire::kMaxBlocksPerFrame + 1; ++i) {
    list.Add({.dst = 2 * i, .src = 0, .len = 1});
  }
  const auto plan = MakePlan(Direction::kWrite, {}, {Part(0, list)}, {.slice_bytes = 1 << 20});
  ASSERT_TRUE(plan);
  ASSERT_EQ((*plan)->slice_count, 3u);
  EXPECT_EQ((*plan)->slice(0).range.blocks, wire::kMaxBlocksPerFrame);
  EXPECT_EQ((*plan)->slice(2).range.blocks, 1u);
}

TEST(Plan, AppendsToMetadataWithoutPayloadForAReadRequest) {
  BlockList list;
  list.Add({.dst = 0, .src = 5, .len = 3});
  const auto plan = MakePlan(Direction::kRead, {}, {Part(0, list)}, {.slice_bytes = kSliceBytes});
  ASSERT_TRUE(plan);
  std::vector<std::byte> meta(7, std::byte{9});
  AppendSlice(**plan, 0, &meta, nullptr);
  EXPECT_EQ(meta.size(), 7 + sizeof(wire::WriteBody) + sizeof(wire::BlockOnWire));
  EXPECT_EQ(meta[6], std::byte{9});
}

TEST(Plan, SlicesCoverRandomListsOfSeveralParts) {
  std::mt19937_64 random(20240901);
  const auto upto = [&](std::uint64_t most) { return random() % (most + 1); };
  for (int round = 0; round < 300; ++round) {
    std::vector<PlanPart> parts;
    for (std::uint32_t i = 0; i < 1 + upto(2); ++i) {
      BlockList list;
      std::uint64_t dst = 0;
      for (std::uint64_t blocks = 1 + upto(9); blocks > 0; --blocks) {
        const Block block{.dst = dst + upto(3), .src = upto(kMemory - 64), .len = 1 + upto(40)};
        list.Add(block);
        dst = block.dst + block.len;
      }
      parts.push_back(Part(i, std::move(list)));
    }
    const Direction direction = upto(1) == 0 ? Direction::kWrite : Direction::kRead;
    ExpectCovers(direction, std::move(parts), 1 + upto(50));
    if (HasFailure()) FAIL() << "round " << round;
  }
}

TEST(Plan, SlicesOfGpuMemoryAreEqualWhereSmallOnesLeaveLanesIdle) {
  BlockList list;
  list.Add({.dst = 0, .src = 0, .len = 64 * kMiB});
  PlanPart part = Part(0, list);
  part.most_slice = kMiB;
  const PlanLimits limits{.slice_bytes = 4 * kMiB, .lanes = 16, .equal = true};
  const auto plan = MakePlan(Direction::kWrite, {}, {part}, limits);
  ASSERT_TRUE(plan);
  EXPECT_EQ((*plan)->slice_count, 64U);
  EXPECT_EQ((*plan)->slice(0).range.bytes, kMiB);
}

}  // namespace
}  // namespace ferry::transfer
