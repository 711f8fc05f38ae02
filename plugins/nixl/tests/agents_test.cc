// Tests transfers and notifications between two agents in two processes.
#include "plugins/nixl/tests/agents_test.h"

#include <fmt/core.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <thread>

namespace ferry::nixl::testing {

using abi::Direction;
using abi::Outcome;
using ::testing::HasSubstr;

abi::Params FastParams(const abi::Params& more) {
  abi::Params params = more;
  for (const std::string& setting : tests::FastSettings()) {
    const std::size_t equals = setting.find('=');
    params.emplace(setting.substr(0, equals), setting.substr(equals + 1));
  }
  return params;
}

void AgentsTest::Start(std::size_t bytes, const abi::Params& params) {
  peer_ = tests::Must(tests::PeerProcess::Start(kAgentRole));
  std::string create = "create";
  for (const auto& [name, value] : params) create += fmt::format(" {}={}", name, value);
  (void)Ask(create);
  memory_ = Pattern(kOwnSeed, bytes);
  agent_.emplace(kOwnName, params);
  ASSERT_EQ(agent_->Register(memory_), Outcome::kSuccess);
  peer_address_ = std::stoull(Ask(fmt::format("memory {} {}", bytes, kPeerSeed)));
}

void AgentsTest::Begin(std::size_t bytes, const abi::Params& params) {
  Start(bytes, params);
  ASSERT_EQ(agent_->Load(Ask("metadata")), Outcome::kSuccess);
  ASSERT_EQ(Ask("load " + agent_->Metadata()), "0");
}

std::string AgentsTest::Ask(std::string_view line) {
  peer_->Command(line);
  return peer_->Answer();
}

Range AgentsTest::Own(std::size_t offset, std::size_t bytes) const {
  return {reinterpret_cast<std::uintptr_t>(memory_.data()) + offset, bytes};
}

StandInAgent::Transfer AgentsTest::Prepare(Direction direction, std::size_t bytes) {
  const Range own = Own(0, bytes);
  const Range peers = Peers(0, bytes);
  return agent_->Prepare(direction, {&own, 1}, {&peers, 1}, kPeerName);
}

namespace {

constexpr std::size_t kBytes = 4 << 20;

std::string Arrived(std::string_view text) {
  return fmt::format("{}:{}:{} ", kOwnName, text.size(), DigestOf(text));
}

TEST_F(AgentsTest, AWriteArrivesAndIsPostedAgain) {
  Begin(kBytes);
  auto transfer = Prepare(Direction::kWrite, kBytes);
  for (int round = 0; round < 3; ++round) {
    memory_[0] = static_cast<std::byte>(round);
    ASSERT_EQ(static_cast<int>(transfer.Post()) < 0, false);
    ASSERT_EQ(transfer.Wait(Soon()), Outcome::kSuccess);
    EXPECT_EQ(PeerDigest(), DigestOf(memory_));
  }
}

TEST_F(AgentsTest, AReadBringsThePeersBytesAndTellsThePeerWithoutPolling) {
  Begin(kBytes);
  auto transfer = Prepare(Direction::kRead, kBytes);
  ASSERT_EQ(static_cast<int>(transfer.Post("done")) < 0, false);
  // Nobody polls here until the peer has the notification.
  EXPECT_EQ(Ask("await 1"), Arrived("done"));
  EXPECT_EQ(transfer.Wait(Soon()), Outcome::kSuccess);
  EXPECT_EQ(memory_, Pattern(kPeerSeed, kBytes));
}

TEST_F(AgentsTest, NotificationsOfAnyLengthArriveWithTheSendersName) {
  Begin(1 << 16);
  auto transfer = Prepare(Direction::kWrite, 1 << 16);
  for (const std::size_t bytes : {0UL, 1UL, 65504UL, 65505UL, 65536UL, 1UL << 20}) {
    const std::string text = Text(bytes, bytes);
    ASSERT_EQ(agent_->engine().Notify(kPeerName, text), Outcome::kSuccess);
    EXPECT_EQ(Ask("await 1"), Arrived(text)) << bytes;
    for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
      auto moving = Prepare(direction, 1 << 16);
      ASSERT_EQ(static_cast<int>(moving.Post(text)) < 0, false);
      EXPECT_EQ(moving.Wait(Soon()), Outcome::kSuccess);
      EXPECT_EQ(Ask("await 1"), Arrived(text)) << bytes;
    }
  }
}

TEST_F(AgentsTest, NotificationsOfOneThreadArriveInOrderAndNoneIsLost) {
  Begin(1 << 16);
  ASSERT_EQ(Ask(fmt::format("notify {} 100 2000", kOwnName)), "ok");
  const auto arrived = agent_->Await(2000, Soon());
  ASSERT_EQ(arrived.size(), 2000U);
  for (std::size_t i = 0; i < arrived.size(); ++i) {
    EXPECT_EQ(arrived[i].first, kPeerName);
    EXPECT_EQ(DigestOf(arrived[i].second), DigestOf(Text(i, 100)));
  }
}

TEST_F(AgentsTest, AHundredThousandShuffledDescriptorsArriveWhereTheyBelong) {
  constexpr std::size_t kCount = 100'000;
  constexpr std::size_t kPage = 48;
  Begin(kCount * kPage);
  std::vector<std::size_t> order(kCount);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(7));
  std::vector<Range> own;
  std::vector<Range> peers;
  for (std::size_t i = 0; i < kCount; ++i) {
    own.push_back(Own(i * kPage, kPage));
    peers.push_back(Peers(order[i] * kPage, kPage));
  }
  const auto begun = Clock::now();
  auto write = agent_->Prepare(Direction::kWrite, own, peers, kPeerName);
  fmt::print("prepared in {:.1f} ms\n", Seconds(Clock::now() - begun) * 1e3);
  ASSERT_EQ(static_cast<int>(write.Post("all")) < 0, false);
  ASSERT_EQ(write.Wait(Soon()), Outcome::kSuccess);
  EXPECT_EQ(Ask("await 1"), Arrived("all"));
  std::vector<std::byte> expected(memory_.size());
  for (std::size_t i = 0; i < kCount; ++i) {
    std::copy_n(memory_.begin() + static_cast<std::ptrdiff_t>(i * kPage), kPage,
                expected.begin() + static_cast<std::ptrdiff_t>(order[i] * kPage));
  }
  EXPECT_EQ(PeerDigest(), DigestOf(expected));
  const std::vector<std::byte> before = memory_;
  std::fill(memory_.begin(), memory_.end(), std::byte{});
  auto read = agent_->Prepare(Direction::kRead, own, peers, kPeerName);
  ASSERT_EQ(static_cast<int>(read.Post()) < 0, false);
  ASSERT_EQ(read.Wait(Soon()), Outcome::kSuccess);
  EXPECT_EQ(memory_, before);
}

TEST_F(AgentsTest, SeveralThreadsTransferAtOnce) {
  constexpr std::size_t kShare = kBytes / 4;
  Begin(kBytes);
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([this, thread] {
      const Range own = Own(thread * kShare, kShare);
      const Range peers = Peers(thread * kShare, kShare);
      for (int round = 0; round < 8; ++round) {
        auto transfer = agent_->Prepare(Direction::kWrite, {&own, 1}, {&peers, 1}, kPeerName);
        EXPECT_GE(static_cast<int>(transfer.Post("part")), 0);
        EXPECT_EQ(transfer.Wait(Soon()), Outcome::kSuccess);
        EXPECT_EQ(agent_->engine().Notify(kPeerName, "more"), Outcome::kSuccess);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(PeerDigest(), DigestOf(memory_));
  EXPECT_THAT(Ask("await 64"), HasSubstr(Arrived("part")));
}

TEST_F(AgentsTest, RegisteredMemoryIsKnownAndATransfersCostIsEstimated) {
  Begin(kBytes);
  const abi::BlobList asked{.items = {{{Own(1, 2).address, 2, 0}, {}}, {{1, 2, 0}, {}}}};
  std::vector<std::optional<abi::Params>> answers;
  ASSERT_EQ(agent_->engine().Query(asked, answers), Outcome::kSuccess);
  ASSERT_EQ(answers.size(), 2U);
  EXPECT_TRUE(answers[0]);
  EXPECT_FALSE(answers[1]);
  auto transfer = Prepare(Direction::kWrite, kBytes);
  ASSERT_GE(static_cast<int>(transfer.Post()), 0);
  ASSERT_EQ(transfer.Wait(Soon()), Outcome::kSuccess);
  std::chrono::microseconds duration{};
  std::chrono::microseconds margin{};
  abi::CostMethod method{};
  ASSERT_EQ(
      agent_->engine().EstimateCost(Direction::kWrite, transfer.local, transfer.remote, kPeerName,
                                    transfer.request, duration, margin, method, nullptr),
      Outcome::kSuccess);
  EXPECT_GT(duration.count(), 0);
}

TEST_F(AgentsTest, NeitherThreadsNorDescriptorsStayAfterAnAgent) {
  const Holdings at_start = Holdings::AtStart();
  Begin(kBytes);
  auto transfer = std::make_optional(Prepare(Direction::kWrite, kBytes));
  ASSERT_GE(static_cast<int>(transfer->Post("x")), 0);
  ASSERT_EQ(transfer->Wait(Soon()), Outcome::kSuccess);
  transfer.reset();
  (void)Ask("await 1");
  agent_.reset();
  EXPECT_EQ(Ask("destroy"), "ok");
  peer_.reset();
  EXPECT_EQ(at_start.Difference(), "");
}

}  // namespace
}  // namespace ferry::nixl::testing
