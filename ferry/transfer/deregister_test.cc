// Tests that deregistering involves only the lanes that have opened the region.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <thread>
#include <vector>

#include "ferry/transfer/memory/region_openers.h"
#include "ferry/transfer/testing/linked_endpoints.h"
#include "ferry/transfer/testing/raw_peer.h"

// Deregistering costs as much as the lanes that have opened the region, however many others exist.
namespace ferry::transfer {
namespace {

using wire::Type;

std::vector<std::byte> ReadBody(const wire::KeyBody& key, std::uint64_t bytes) {
  auto body = Pod(wire::WriteBody{key, 0, 1});
  wire::Append(&body, wire::BlockOnWire{0, bytes});
  return body;
}

TEST(RegionOpenersTest, KeepOneRecordForAConnectionWithABitForEachLane) {
  RegionOpeners openers;
  EXPECT_TRUE(openers.All().empty());
  openers.AddLane(7, 3);
  openers.AddLane(2, 63);
  openers.AddLane(7, 0);
  openers.AddSharer(7);
  const auto all = openers.All();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].connection, 2u);
  EXPECT_EQ(all[0].lanes, std::uint64_t{1} << 63);
  EXPECT_FALSE(all[0].shares);
  EXPECT_EQ(all[1].connection, 7u);
  EXPECT_EQ(all[1].lanes, 0b1001u);
  EXPECT_TRUE(all[1].shares);
  EXPECT_EQ(openers.LanesOf(7), 0b1001u);
  EXPECT_EQ(openers.LanesOf(3), 0u);
}

TEST(RegionOpenersTest, ALaneThatHasForgottenARegionAddsItselfAgain) {
  OpenedRegions opened;
  EXPECT_FALSE(opened.Add(1, 1));
  EXPECT_TRUE(opened.Add(1, 1));
  EXPECT_FALSE(opened.Add(1, 2));   // another registration in the same slot
  EXPECT_FALSE(opened.Add(17, 1));  // evicts it
  EXPECT_FALSE(opened.Add(1, 2));
}

class DeregisterTest : public ::testing::Test {
 protected:
  static constexpr std::uint16_t kLanes = 8;

  DeregisterTest() {
    rlimit files{};
    (void)::getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = std::max<rlim_t>(files.rlim_cur, std::min<rlim_t>(files.rlim_max, 4096));
    (void)::setrlimit(RLIMIT_NOFILE, &files);
  }
  void Connect(std::size_t peers) {
    for (std::size_t i = 0; i < peers; ++i) {
      peers_.emplace_back(endpoint_.port(), kLanes);
      connections_.push_back(Must(endpoint_.Accept(Soon())));
    }
  }

  Endpoint endpoint_ = Must(Endpoint::Create(SmallSlices(kLanes, 2)));
  std::deque<RawPeer> peers_;
  std::deque<Connection> connections_;
};

void RaiseTo(std::size_t value, std::atomic<std::size_t>* most) {
  for (auto was = most->load(); was < value && !most->compare_exchange_weak(was, value);) {
  }
}

// Otherwise each thread would queue a task for every lane of every connection each time.
TEST_F(DeregisterTest, FourThreadsThatRegisterInALoopQueueNothingForLanesThatNeverSawTheRegions) {
  constexpr int kRounds = 2000;
  Connect(40);
  const std::size_t before = ::mallinfo2().uordblks;
  std::atomic<std::size_t> most{0};
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        std::vector<std::byte> memory(4096);
        for (int round = 0; round < kRounds; ++round) {
          Region region = Must(endpoint_.Register(memory, Rights::kReadWrite));
          ASSERT_TRUE(region.Deregister(Soon()));
          if (round % 100 == 0) RaiseTo(::mallinfo2().uordblks, &most);
        }
      });
    }
  }
  EXPECT_LT(most.load(), before + (4U << 20));
}

TEST_F(DeregisterTest, WaitsForTheOneLaneOfManyThatIsInTheMiddleOfAWrite) {
  Connect(20);
  std::vector<std::byte> memory(1000);
  // More regions than a lane remembers, so that evicted ones are revoked, too.
  std::vector<std::vector<std::byte>> others(40, std::vector<std::byte>(16));
  std::vector<Region> regions;
  Region region = Must(endpoint_.Register(memory, Rights::kReadWrite));
  for (auto& other : others) regions.push_back(Must(endpoint_.Register(other, Rights::kReadWrite)));
  RawLane& lane = peers_[13].lane(5);
  Saying write{.type = Type::kWrite,
               .operation = 1,
               .body = ReadBody(region.remote().key, 1000),
               .payload = std::vector<std::byte>(1000, std::byte{1})};
  ASSERT_TRUE(lane.Say(write));
  ASSERT_TRUE(lane.WaitAcked(1));
  for (const Region& other : regions) {
    ASSERT_TRUE(lane.Say(
        {.type = Type::kReadRequest, .operation = 2, .body = ReadBody(other.remote().key, 16)}));
    (void)lane.Expect(Type::kReadData);
    ASSERT_TRUE(lane.AckAll());
  }
  const auto bytes = lane.Encode(write);
  ASSERT_TRUE(lane.SendBytes(std::span(bytes).first(bytes.size() - 500)));
  ASSERT_TRUE(peers_[13].lane(4).IsQuiet());
  ASSERT_TRUE(region.Deregister(Soon()));
  std::fill(memory.begin(), memory.end(), std::byte{0xEE});
  ASSERT_TRUE(lane.SendBytes(std::span(bytes).last(500)));
  ASSERT_TRUE(lane.WaitAcked(2));
  EXPECT_EQ(std::count(memory.begin(), memory.end(), std::byte{0xEE}), 1000);
  // The lane stays up.
  EXPECT_TRUE(peers_[13].lane(4).IsQuiet());
  EXPECT_FALSE(connections_[13].lost());
}

// An answer that the peer does not acknowledge keeps the memory in use; only that connection fails.
TEST_F(DeregisterTest, EndsOnlyTheConnectionThatDoesNotAcknowledgeWhatItHasRead) {
  Connect(5);
  std::vector<std::byte> memory(1000);
  Region region = Must(endpoint_.Register(memory, Rights::kRead));
  RawLane& lane = peers_[2].lane(3);
  ASSERT_TRUE(lane.Say(
      {.type = Type::kReadRequest, .operation = 1, .body = ReadBody(region.remote().key, 1000)}));
  (void)lane.Expect(Type::kReadData);
  ASSERT_TRUE(region.Deregister(Soon()));
  lane.WaitClosed();
  for (const std::size_t other : {0U, 1U, 3U, 4U}) {
    EXPECT_TRUE(peers_[other].lane().IsQuiet());
    EXPECT_FALSE(connections_[other].lost());
  }
}

// As Python's deregister() does, which looks for signals in between.
TEST_F(DeregisterTest, InPartsEndsThatConnectionAsOneCallDoes) {
  Connect(2);
  std::vector<std::byte> memory(1000);
  Region region = Must(endpoint_.Register(memory, Rights::kRead));
  RawLane& lane = peers_[1].lane(3);
  ASSERT_TRUE(lane.Say(
      {.type = Type::kReadRequest, .operation = 1, .body = ReadBody(region.remote().key, 1000)}));
  (void)lane.Expect(Type::kReadData);
  const Deadline limit = Soon();
  while (!region.Deregister(Deadline::After(milliseconds(5)))) ASSERT_FALSE(limit.expired());
  lane.WaitClosed();
  EXPECT_FALSE(connections_[0].lost());
}

// Numbers of closed connections are reused.
TEST_F(DeregisterTest, FindsALaneWhoseConnectionHasTheNumberOfAnEarlierOne) {
  std::vector<std::byte> memory(1000);
  Region region = Must(endpoint_.Register(memory, Rights::kReadWrite));
  for (int round = 0; round < 3; ++round) {
    Connect(2);
    const Saying read{
        .type = Type::kReadRequest, .operation = 1, .body = ReadBody(region.remote().key, 8)};
    ASSERT_TRUE(peers_.back().lane(static_cast<std::size_t>(round)).Say(read));
    (void)peers_.back().lane(static_cast<std::size_t>(round)).Expect(Type::kReadData);
    if (round == 2) break;
    connections_.clear();
    peers_.clear();
    const Deadline limit = Soon();
    while (endpoint_.Counters().connections_open > 0) ASSERT_FALSE(limit.expired());
  }
  ASSERT_TRUE(region.Deregister(Soon()));
  peers_.back().lane(2).WaitClosed();
  EXPECT_TRUE(peers_.front().lane().IsQuiet());
}

}  // namespace
}  // namespace ferry::transfer
