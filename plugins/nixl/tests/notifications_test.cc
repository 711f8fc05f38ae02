// Tests notifications that a peer does not take, and those of a forked child.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "plugins/nixl/peers/courier.h"
#include "plugins/nixl/tests/agents_test.h"

namespace ferry::nixl::testing {
namespace {

using abi::Direction;
using abi::Outcome;

class CountingJob final : public Job {
 public:
  void Start(const transfer::Connection& /*connection*/) override {}
  void Fail(const Error& /*error*/) override {}
  void Advance() override { ++advanced; }

  std::atomic<int> advanced{0};
};

TEST(CourierTest, AJobThatAsksManyTimesIsRetriedOnce) {
  const auto courier = tests::Must(Courier::Create());
  const auto job = std::make_shared<CountingJob>();  // shared with the courier
  const auto begun = Clock::now();
  for (int i = 0; i < 100'000; ++i) courier->Retry(job);
  courier->WaitIdle(tests::TestDeadline());
  EXPECT_GE(job->advanced, 1);
  EXPECT_LE(job->advanced,
            2 + static_cast<int>(Seconds(Clock::now() - begun) * 1e3));  // one for each pause
}

class NixlFloodTest : public AgentsTest {};

// More than the peer keeps, of which each has several pieces.
TEST_F(NixlFloodTest, NotificationsThatNobodyTakesWaitAndArriveLaterInOrder) {
  constexpr std::size_t kCount = 7000;
  constexpr std::size_t kEach = 70'000;
  Begin(1 << 16);
  ASSERT_EQ(agent_->engine().Notify(kPeerName, "first"), Outcome::kSuccess);
  EXPECT_NE(Ask("await 1"), "");
  const Holdings before = Holdings::AtStart();
  std::string expected;
  for (std::size_t i = 0; i < kCount; ++i) {
    const std::string text = fmt::format("{:0{}}", i, kEach);
    expected += fmt::format("{}:{}:{} ", kOwnName, kEach, DigestOf(text));
    ASSERT_EQ(agent_->engine().Notify(kPeerName, text), Outcome::kSuccess);
  }
  EXPECT_LT(Holdings::AtStart().descriptors, before.descriptors + 200);
  EXPECT_TRUE(Ask(fmt::format("await {}", kCount)) == expected);
}

TEST_F(AgentsTest, NotificationsOfAnySizeAndThoseOfTransfersArriveInOrderWhileThePeerSleeps) {
  Begin(1 << 16);
  std::string expected;
  const auto next = [&](std::size_t i, std::size_t bytes) {
    std::string text = Text(i, bytes);
    expected += fmt::format("{}:{}:{} ", kOwnName, bytes, DigestOf(text));
    return text;
  };
  constexpr std::size_t kSizes[] = {40'000, 0, 200'000, 1, 65'496, 65'497, 1 << 20};
  constexpr std::size_t kRounds = 20;
  for (std::size_t i = 0; i < kRounds * std::size(kSizes); ++i) {
    const std::size_t bytes = kSizes[i % std::size(kSizes)];
    if (i % 10 == 9) {
      auto transfer = Prepare(i % 20 == 9 ? Direction::kWrite : Direction::kRead, 1 << 16);
      ASSERT_GE(static_cast<int>(transfer.Post(next(i, bytes))), 0);
      ASSERT_EQ(transfer.Wait(Soon()), Outcome::kSuccess);
    } else {
      ASSERT_EQ(agent_->engine().Notify(kPeerName, next(i, bytes)), Outcome::kSuccess);
    }
  }
  EXPECT_EQ(Ask(fmt::format("await {}", kRounds * std::size(kSizes))), expected);
}

TEST_F(AgentsTest, ANotificationLongerThanPeersAcceptIsRefusedAndTheConnectionStays) {
  Begin(1 << 16);
  const std::string text((16 << 20) + 1, 'x');
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(agent_->engine().Notify(kPeerName, text), Outcome::kInvalidParam);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::HasSubstr("the limit is 16777216; move the bytes by a transfer, or send "
                                   "several notifications"));
  auto transfer = Prepare(Direction::kWrite, 1 << 16);
  EXPECT_EQ(transfer.Post(text), Outcome::kInvalidParam);
  ASSERT_EQ(agent_->engine().Notify(kPeerName, "short"), Outcome::kSuccess);
  EXPECT_THAT(Ask("await 1"), ::testing::HasSubstr(":5:"));
}

TEST_F(AgentsTest, AForkedChildGetsErrorsAndMayGiveTheAgentUp) {
  Begin(1 << 16);
  auto transfer = Prepare(Direction::kWrite, 1 << 16);
  ASSERT_GE(static_cast<int>(transfer.Post()), 0);
  ASSERT_EQ(transfer.Wait(Soon()), Outcome::kSuccess);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(20);
    const bool refused = agent_->engine().Notify(kPeerName, "x") == Outcome::kInvalidParam &&
                         agent_->engine().Disconnect(kPeerName) == Outcome::kSuccess;
    LoadedPlugin().destroy(&agent_->engine());
    ::_exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_GE(static_cast<int>(transfer.Post()), 0);
  EXPECT_EQ(transfer.Wait(Soon()), Outcome::kSuccess);
}

}  // namespace
}  // namespace ferry::nixl::testing
