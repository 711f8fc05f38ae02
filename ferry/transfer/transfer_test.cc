// Tests writes and reads of block lists between two endpoints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>
#include <utility>

#include "ferry/copy/testing/copy_blocks.h"
#include "ferry/core/testing/random_bytes.h"
#include "ferry/transfer/testing/linked_endpoints.h"

namespace ferry::transfer {
namespace {

using ::testing::HasSubstr;

// `blocks` blocks in random order that leave random gaps in the destination.
BlockList RandomList(std::mt19937_64* random, std::uint64_t dst_size, std::uint64_t src_size,
                     std::size_t blocks) {
  const auto upto = [&](std::uint64_t most) { return (*random)() % (most + 1); };
  const std::uint64_t share = dst_size / blocks;
  std::vector<Block> list;
  for (std::size_t i = 0; i < blocks; ++i) {
    const std::uint64_t gap = upto(share / 2);
    const std::uint64_t len = 1 + upto(share - gap - 1);
    list.push_back({.dst = i * share + gap, .src = upto(src_size - len), .len = len});
  }
  std::shuffle(list.begin(), list.end(), *random);
  return BlockList(std::move(list));
}

std::vector<TransferPart> OnePart(const Region& local, const RemoteRegion& remote,
                                  BlockList blocks) {
  std::vector<TransferPart> parts;
  parts.push_back({&local, &remote, std::move(blocks)});
  return parts;
}

BlockList OneBlock(std::uint64_t dst, std::uint64_t src, std::uint64_t len) {
  BlockList list;
  list.Add({.dst = dst, .src = src, .len = len});
  return list;
}

struct Shape {
  int lanes;
  int workers;
};
void PrintTo(const Shape& shape, std::ostream* out) {
  *out << shape.lanes << " lanes, " << shape.workers << " workers";
}

// Both sides with the same config, and memory on both.
class TransferTest : public ::testing::TestWithParam<Shape> {
 protected:
  static constexpr std::size_t kBytes = 600'000;

  void ExpectGuards() {
    EXPECT_TRUE(here_.GuardsIntact());
    EXPECT_TRUE(there_.GuardsIntact());
  }

  GuardedMemory here_{kBytes, 1};
  GuardedMemory there_{kBytes, 2};
  Link link_ = MakeLink(SmallSlices(GetParam().lanes, GetParam().workers));
  Connection near_ = *link_.near.connection;
  Region local_ = Must(link_.near.endpoint->Register(here_.span(), Rights::kNone));
  Region target_ = Must(link_.far.endpoint->Register(there_.span(), Rights::kReadWrite));
  RemoteRegion remote_ = Must(near_.Import(target_.key()));
  std::mt19937_64 random_{static_cast<unsigned>(100 * GetParam().lanes + GetParam().workers)};
};

INSTANTIATE_TEST_SUITE_P(LanesAndWorkers, TransferTest,
                         ::testing::Values(Shape{1, 1}, Shape{1, 3}, Shape{2, 1}, Shape{2, 2},
                                           Shape{5, 1}, Shape{5, 2}, Shape{5, 3}),
                         [](const auto& shape) {
                           return std::to_string(shape.param.lanes) + "Lanes" +
                                  std::to_string(shape.param.workers) + "Workers";
                         });

TEST_P(TransferTest, AWriteOfAWholeRegionIsInPlaceWhenItEnds) {
  auto operation = near_.Write(local_, 0, remote_, 0, kBytes);
  ASSERT_TRUE(EndsOk(operation));
  EXPECT_EQ(operation->bytes(), kBytes);
  EXPECT_TRUE(SameBytes(there_.Copy(), here_.Copy()));
  ExpectGuards();
}

TEST_P(TransferTest, AReadOfAWholeRegionIsInPlaceWhenItEnds) {
  auto operation = near_.Read(local_, 0, remote_, 0, kBytes);
  ASSERT_TRUE(EndsOk(operation));
  EXPECT_EQ(operation->bytes(), kBytes);
  EXPECT_TRUE(SameBytes(here_.Copy(), there_.Copy()));
  ExpectGuards();
}

TEST_P(TransferTest, OddSizesAtOddOffsetsMoveExactlyTheirBytes) {
  for (const std::size_t bytes :
       {1UL, 2UL, 3UL, 4095UL, 4096UL, 4097UL, 8192UL, 12289UL, 65537UL}) {
    for (const std::uint64_t offset : {0UL, 1UL, 4097UL}) {
      SCOPED_TRACE(std::to_string(bytes) + " bytes at " + std::to_string(offset));
      auto expected = there_.Copy();
      CopyBlocks(OneBlock(offset, 3 * offset, bytes), expected, here_.span());
      ASSERT_TRUE(EndsOk(near_.Write(local_, 3 * offset, remote_, offset, bytes)));
      EXPECT_TRUE(SameBytes(there_.Copy(), expected));
      expected = here_.Copy();
      CopyBlocks(OneBlock(5 * offset, offset, bytes), expected, there_.span());
      ASSERT_TRUE(EndsOk(near_.Read(local_, 5 * offset, remote_, offset, bytes)));
      EXPECT_TRUE(SameBytes(here_.Copy(), expected));
    }
  }
  ExpectGuards();
}

TEST_P(TransferTest, AScatteredWriteGivesTheBytesOfALocalCopy) {
  for (const std::size_t blocks : {1U, 2U, 17U, 300U, 9000U}) {
    SCOPED_TRACE(std::to_string(blocks) + " blocks");
    const BlockList list = RandomList(&random_, kBytes, kBytes, blocks);
    auto expected = there_.Copy();
    CopyBlocks(list, expected, here_.span());
    const auto transfer = Must(near_.PrepareWrite(OnePart(local_, remote_, list)));
    EXPECT_EQ(transfer.bytes(), list.total_bytes());
    ASSERT_TRUE(EndsOk(near_.Write(transfer)));
    EXPECT_TRUE(SameBytes(there_.Copy(), expected));
  }
  ExpectGuards();
}

TEST_P(TransferTest, AScatteredReadGivesTheBytesOfALocalCopy) {
  for (const std::size_t blocks : {1U, 2U, 17U, 300U, 9000U}) {
    SCOPED_TRACE(std::to_string(blocks) + " blocks");
    const BlockList list = RandomList(&random_, kBytes, kBytes, blocks);
    auto expected = here_.Copy();
    CopyBlocks(list, expected, there_.span());
    const auto transfer = Must(near_.PrepareRead(OnePart(local_, remote_, list)));
    ASSERT_TRUE(EndsOk(near_.Read(transfer)));
    EXPECT_TRUE(SameBytes(here_.Copy(), expected));
  }
  ExpectGuards();
}

TEST_P(TransferTest, PartsOfOneTransferMayUseDifferentRegionsOnBothSides) {
  GuardedMemory here2(50'000, 3);
  GuardedMemory there2(70'000, 4);
  const Region local2 = Must(link_.near.endpoint->Register(here2.span(), Rights::kNone));
  const Region target2 = Must(link_.far.endpoint->Register(there2.span(), Rights::kReadWrite));
  const RemoteRegion remote2 = Must(near_.Import(target2.key()));
  const BlockList first = RandomList(&random_, 300'000, kBytes, 40);
  const BlockList second = RandomList(&random_, 70'000, 50'000, 7);
  const BlockList third = OneBlock(400'000, 0, 50'000);
  auto expected = there_.Copy();
  auto expected2 = there2.Copy();
  CopyBlocks(first, expected, here_.span());
  CopyBlocks(second, expected2, here2.span());
  CopyBlocks(third, expected, here2.span());
  std::vector<TransferPart> parts;
  parts.push_back({&local_, &remote_, first});
  parts.push_back({&local2, &remote2, second});
  parts.push_back({&local2, &remote_, third});
  ASSERT_TRUE(EndsOk(near_.Write(Must(near_.PrepareWrite(std::move(parts))))));
  EXPECT_TRUE(SameBytes(there_.Copy(), expected));
  EXPECT_TRUE(SameBytes(there2.Copy(), expected2));
  EXPECT_TRUE(here2.GuardsIntact() && there2.GuardsIntact());
  ExpectGuards();
}

TEST_P(TransferTest, APreparedTransferCanBePostedManyTimesOneAfterAnother) {
  const BlockList list = RandomList(&random_, kBytes, kBytes, 60);
  const auto transfer = Must(near_.PrepareWrite(OnePart(local_, remote_, list)));
  for (unsigned round = 0; round < 20; ++round) {
    const auto fresh = RandomBytes(kBytes, 100 + round);
    std::copy(fresh.begin(), fresh.end(), here_.span().begin());
    auto expected = there_.Copy();
    CopyBlocks(list, expected, here_.span());
    ASSERT_TRUE(EndsOk(near_.Write(transfer)));
    ASSERT_TRUE(SameBytes(there_.Copy(), expected)) << "round " << round;
  }
}

TEST_P(TransferTest, ManyPostsAtOnceInBothDirectionsAllEndWell) {
  GuardedMemory other(kBytes, 5);
  const Region into = Must(link_.near.endpoint->Register(other.span(), Rights::kNone));
  const BlockList list = RandomList(&random_, kBytes, kBytes, 25);
  const auto write = Must(near_.PrepareWrite(OnePart(local_, remote_, list)));
  GuardedMemory source(kBytes, 6);
  const Region readable = Must(link_.far.endpoint->Register(source.span(), Rights::kRead));
  const RemoteRegion from = Must(near_.Import(readable.key()));
  const auto read = Must(near_.PrepareRead(OnePart(into, from, list)));
  auto written = there_.Copy();
  auto fetched = other.Copy();
  CopyBlocks(list, written, here_.span());
  CopyBlocks(list, fetched, source.span());
  std::vector<Operation> operations;
  for (int i = 0; i < 20; ++i) {
    operations.push_back(Must(near_.Write(write)));
    operations.push_back(Must(near_.Read(read)));
  }
  for (const Operation& operation : operations) ASSERT_TRUE(EndsOk(operation));
  EXPECT_TRUE(SameBytes(there_.Copy(), written));
  EXPECT_TRUE(SameBytes(other.Copy(), fetched));
  EXPECT_TRUE(other.GuardsIntact());
  ExpectGuards();
}

TEST_P(TransferTest, BothSidesMayWriteAndReadAtTheSameTime) {
  GuardedMemory theirs(kBytes, 7);
  GuardedMemory ours(kBytes, 8);
  const Region far_local = Must(link_.far.endpoint->Register(theirs.span(), Rights::kNone));
  const Region near_target = Must(link_.near.endpoint->Register(ours.span(), Rights::kWrite));
  Connection far = *link_.far.connection;
  const RemoteRegion near_remote = Must(far.Import(near_target.key()));
  std::vector<Operation> operations;
  for (int i = 0; i < 4; ++i) {
    operations.push_back(Must(near_.Write(local_, 0, remote_, 0, kBytes)));
    operations.push_back(Must(far.Write(far_local, 0, near_remote, 0, kBytes)));
  }
  for (const Operation& operation : operations) ASSERT_TRUE(EndsOk(operation));
  EXPECT_TRUE(SameBytes(there_.Copy(), here_.Copy()));
  EXPECT_TRUE(SameBytes(ours.Copy(), theirs.Copy()));
}

// Bytes [index * kShare, ...) belong to one thread, which writes them to the peer and reads them
// back.
constexpr std::size_t kShare = 20'000;

void WriteAndReadBack(Connection connection, const Region* local, const RemoteRegion* remote,
                      std::uint64_t index) {
  const std::uint64_t at = index * kShare;
  for (int round = 0; round < 10; ++round) {
    ASSERT_TRUE(EndsOk(connection.Write(*local, at, *remote, at, kShare)));
    ASSERT_TRUE(EndsOk(connection.Read(*local, at + kShare / 2, *remote, at, kShare / 2)));
  }
}

TEST_P(TransferTest, ManyThreadsMayPostAndWaitOnOneConnectionAtOnce) {
  constexpr std::uint64_t kThreads = 8;
  {
    std::vector<std::jthread> threads;
    for (std::uint64_t i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] { WriteAndReadBack(near_, &local_, &remote_, i); });
    }
  }
  for (std::size_t i = 0; i < kThreads; ++i) {
    const auto here = here_.span().subspan(i * kShare, kShare);
    const auto there = there_.span().subspan(i * kShare, kShare / 2);
    EXPECT_TRUE(std::equal(there.begin(), there.end(), here.begin()));
    EXPECT_TRUE(std::equal(there.begin(), there.end(), here.begin() + kShare / 2));
  }
  EXPECT_TRUE(Works(&link_));
}

// ---- invalid calls ------------------------------------------------------------------------------

class WrongCallTest : public ::testing::Test {
 protected:
  void ExpectError(const auto& result, Code code, const char* words) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code(), code);
    EXPECT_THAT(result.error().message(), HasSubstr(words));
  }

  GuardedMemory here_{10'000, 1};
  GuardedMemory there_{8'000, 2};
  Link link_ = MakeLink();
  Connection near_ = *link_.near.connection;
  Region local_ = Must(link_.near.endpoint->Register(here_.span(), Rights::kNone));
  Region target_ = Must(link_.far.endpoint->Register(there_.span(), Rights::kReadWrite));
  RemoteRegion remote_ = Must(near_.Import(target_.key()));
};

TEST_F(WrongCallTest, ATransferNeedsPartsBlocksAndBytes) {
  ExpectError(near_.PrepareWrite({}), Code::kInvalidArgument, "no parts");
  ExpectError(near_.PrepareWrite(OnePart(local_, remote_, {})), Code::kInvalidArgument, "block");
  ExpectError(near_.Write(local_, 0, remote_, 0, 0), Code::kInvalidArgument, "block 0");
  std::vector<TransferPart> parts;
  parts.push_back({&local_, nullptr, OneBlock(0, 0, 1)});
  ExpectError(near_.PrepareWrite(std::move(parts)), Code::kInvalidArgument, "remote region");
}

TEST_F(WrongCallTest, BlocksOutsideEitherRegionAreNamedWithTheirPart) {
  ExpectError(near_.Write(local_, 0, remote_, 8'000, 1), Code::kInvalidArgument, "block 0");
  ExpectError(near_.Write(local_, 9'999, remote_, 0, 2), Code::kInvalidArgument, "block 0");
  ExpectError(near_.Read(local_, 0, remote_, ~std::uint64_t{0}, 2), Code::kInvalidArgument,
              "block 0");
  std::vector<TransferPart> parts;
  parts.push_back({&local_, &remote_, OneBlock(0, 0, 1)});
  parts.push_back({&local_, &remote_, OneBlock(8'000, 0, 1)});
  ExpectError(near_.PrepareWrite(std::move(parts)), Code::kInvalidArgument, "part 1: ");
}

TEST_F(WrongCallTest, AKeyWithoutTheRightIsRefusedBeforeAnythingIsSent) {
  const Region read_only = Must(link_.far.endpoint->Register(there_.span(), Rights::kRead));
  const Region write_only = Must(link_.far.endpoint->Register(there_.span(), Rights::kWrite));
  const RemoteRegion readable = Must(near_.Import(read_only.key()));
  const RemoteRegion writable = Must(near_.Import(write_only.key()));
  ExpectError(near_.Write(local_, 0, readable, 0, 1), Code::kRefused, "reading only");
  ExpectError(near_.Read(local_, 0, writable, 0, 1), Code::kRefused, "writing only");
  EXPECT_EQ(link_.far.connection->Info().refused_accesses, 0u);
}

TEST_F(WrongCallTest, AKeyOfAnotherEndpointThanThePeerIsNotImported) {
  ExpectError(near_.Import(local_.key()), Code::kInvalidArgument, "this key belongs to endpoint");
  ExpectError(near_.Import({}), Code::kInvalidArgument, "not a region key");
  const RemoteRegion own = local_.remote();
  ExpectError(near_.PrepareWrite(OnePart(local_, own, OneBlock(0, 0, 1))), Code::kInvalidArgument,
              "endpoint");
}

TEST_F(WrongCallTest, ATransferIsPostedOnlyInItsDirectionAndToItsPeer) {
  const auto write = Must(near_.PrepareWrite(OnePart(local_, remote_, OneBlock(0, 0, 1))));
  ExpectError(near_.Read(write), Code::kInvalidArgument, "prepared for writing");
  ExpectError(link_.far.connection->Write(write), Code::kInvalidArgument, "prepared for writing");
}

TEST_F(WrongCallTest, ATransferOfADeregisteredLocalRegionIsNotPosted) {
  const auto write = Must(near_.PrepareWrite(OnePart(local_, remote_, OneBlock(0, 0, 1))));
  ASSERT_TRUE(local_.Deregister(Soon()));
  ExpectError(near_.Write(write), Code::kInvalidArgument, "deregistered");
  EXPECT_TRUE(Works(&link_));
}

TEST_F(WrongCallTest, NotificationsHaveABound) {
  const std::vector<std::byte> large(64 * 1024 + 1);
  const auto write = Must(near_.PrepareWrite(OnePart(local_, remote_, OneBlock(0, 0, 1))));
  ExpectError(near_.Write(write, {.notification = large}), Code::kInvalidArgument, "65537");
  ExpectError(near_.Notify(large), Code::kInvalidArgument, "65537");
  ExpectError(near_.Notify({}), Code::kInvalidArgument, "1 to");
}

TEST_F(WrongCallTest, AWriteToADeregisteredRemoteRegionIsRefusedAndTheConnectionLivesOn) {
  ASSERT_TRUE(target_.Deregister(Soon()));
  const auto before = there_.Copy();
  auto write = near_.Write(local_, 0, remote_, 0, 8'000);
  ASSERT_TRUE(EndsWith(Code::kRefused, write));
  EXPECT_THAT(EndMessage(*write), HasSubstr("stale"));
  auto read = near_.Read(local_, 0, remote_, 0, 8'000);
  ASSERT_TRUE(EndsWith(Code::kRefused, read));
  EXPECT_THAT(EndMessage(*read), HasSubstr("stale"));
  EXPECT_TRUE(SameBytes(there_.Copy(), before));
  EXPECT_TRUE(Works(&link_));
  EXPECT_GE(link_.far.connection->Info().refused_accesses, 2u);
}

TEST_F(WrongCallTest, NoMoreOperationsBeginThanTheLimitAllows) {
  Config config = SmallSlices();
  config.max_operations = 3;
  Link link = MakeLink(config, SmallSlices());
  Connection near = *link.near.connection;
  std::vector<std::byte> buffer(8);
  std::vector<Operation> receives;
  for (int i = 0; i < 3; ++i) receives.push_back(Must(near.Recv(1, ~0ULL, buffer)));
  ExpectError(near.Send(1, buffer), Code::kUnavailable, "FERRY_MAX_OPERATIONS");
  receives.front().Cancel();
  EXPECT_TRUE(EndsWith(Code::kCancelled, receives.front()));
  EXPECT_TRUE(EndsOk(near.Send(1, buffer)));
}

}  // namespace
}  // namespace ferry::transfer
