// Tests of the log rate limits.
#include "ferry/core/log_limiter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "ferry/core/stderr_line.h"

namespace ferry {
namespace {

using std::chrono::seconds;

class LimiterTest : public testing::Test {
 protected:
  Clock::time_point now_{seconds(1000)};
  LogLimiter limiter_{seconds(1), [this] { return now_; }};
};

TEST_F(LimiterTest, TheFirstMessageOfAKeyIsWrittenAtOnce) {
  EXPECT_EQ(limiter_.Admit("10.0.0.1"), 0u);
  EXPECT_EQ(limiter_.Admit("10.0.0.2"), 0u);
}

TEST_F(LimiterTest, TheFirstMessageIsWrittenAtAnyTimeOfTheClock) {
  now_ = Clock::time_point{};
  EXPECT_EQ(limiter_.Admit("10.0.0.1"), 0u);
  EXPECT_FALSE(limiter_.Admit("10.0.0.1"));
}

TEST_F(LimiterTest, WithinTheIntervalNoOtherOfTheKeyIsWrittenAndTheNextTellsHowMany) {
  EXPECT_EQ(limiter_.Admit("a"), 0u);
  for (int i = 0; i < 7; ++i) EXPECT_FALSE(limiter_.Admit("a"));
  now_ += seconds(1) - Clock::duration(1);
  EXPECT_FALSE(limiter_.Admit("a"));
  now_ += Clock::duration(1);
  EXPECT_EQ(limiter_.Admit("a"), 8u);
  EXPECT_FALSE(limiter_.Admit("a"));
  now_ += seconds(5);
  EXPECT_EQ(limiter_.Admit("a"), 1u);
}

TEST_F(LimiterTest, SeveralMessagesAnIntervalAreWrittenWhereSoManyAreAllowed) {
  LogLimiter three(
      seconds(1), [this] { return now_; }, /*most=*/3);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(three.Admit("a"), 0u);
  EXPECT_FALSE(three.Admit("a"));
  EXPECT_FALSE(three.Admit("a"));
  now_ += seconds(1);
  EXPECT_EQ(three.Admit("a"), 2u);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(three.Admit("a"), 0u);
  EXPECT_FALSE(three.Admit("a"));
}

TEST_F(LimiterTest, OneKeyDoesNotSilenceAnother) {
  EXPECT_TRUE(limiter_.Admit("a"));
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(limiter_.Admit("a"));
  EXPECT_EQ(limiter_.Admit("b"), 0u);
}

TEST_F(LimiterTest, WhereThereAreTooManyKeysTheRestShareOneMessage) {
  for (std::size_t i = 0; i < LogLimiter::kMaxKeys; ++i) {
    EXPECT_TRUE(limiter_.Admit("known " + std::to_string(i)));
  }
  EXPECT_EQ(limiter_.Admit("late 1"), 0u);
  int written = 0;
  for (int i = 0; i < 1000; ++i) written += limiter_.Admit("late " + std::to_string(i)) ? 1 : 0;
  EXPECT_EQ(written, 0);
  EXPECT_FALSE(limiter_.Admit("known 0"));
}

TEST_F(LimiterTest, KeysThatHaveBeenQuietMakeRoomForOthers) {
  for (std::size_t i = 0; i < LogLimiter::kMaxKeys; ++i) {
    EXPECT_TRUE(limiter_.Admit("old " + std::to_string(i)));
  }
  now_ += seconds(1);
  EXPECT_TRUE(limiter_.Admit("old 0"));  // still remembered
  for (std::size_t i = 1; i < LogLimiter::kMaxKeys; ++i) {
    EXPECT_EQ(limiter_.Admit("new " + std::to_string(i)), 0u) << i;
  }
  EXPECT_FALSE(limiter_.Admit("old 0"));
  EXPECT_FALSE(limiter_.Admit("new 1"));
}

TEST_F(LimiterTest, AResetForgetsAllKeysAndWhatWasSuppressed) {
  for (std::size_t i = 0; i <= LogLimiter::kMaxKeys; ++i) limiter_.Admit("a" + std::to_string(i));
  EXPECT_FALSE(limiter_.Admit("a0"));
  EXPECT_FALSE(limiter_.Admit("b"));  // shares a message with the last
  limiter_.Reset();
  EXPECT_EQ(limiter_.Admit("a0"), 0u);
  EXPECT_EQ(limiter_.Admit("b"), 0u);
}

// Each of the two uses up what a process may log in a second.
class LimitsOfTests : public testing::TestWithParam<int> {};

TEST_P(LimitsOfTests, AreNotUsedUpByAnEarlierTestOfTheProcess) {
  testing::internal::CaptureStderr();
  const auto begin = Clock::now();
  for (int i = 0; i < kMaxLinesPerSecond; ++i) {
    PeerLogLimiter().Write(LogLevel::kWarn, "transfer", std::to_string(i % 10), {}, "refused");
  }
  for (int i = 0; i < kPeerLines; ++i) {
    PeerLogLimiter().Write(LogLevel::kWarn, "transfer", "0", {}, "refused");
  }
  const bool in_a_second = Clock::now() - begin < seconds(1);
  const std::string out = testing::internal::GetCapturedStderr();
  const auto lines = std::count(out.begin(), out.end(), '\n');
  EXPECT_GE(lines, kMaxLinesPerSecond);
  EXPECT_TRUE(lines == kMaxLinesPerSecond || !in_a_second) << lines;
}

INSTANTIATE_TEST_SUITE_P(One, LimitsOfTests, testing::Values(1, 2));

TEST_F(LimiterTest, ThreadsTogetherWriteOneMessage) {
  std::atomic<int> written{0};
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int n = 0; n < 1000; ++n) written += limiter_.Admit("a") ? 1 : 0;
      });
    }
  }
  EXPECT_EQ(written.load(), 1);
  now_ += seconds(1);
  EXPECT_EQ(limiter_.Admit("a"), 3999u);
}

TEST_F(LimiterTest, WritesTheTextAndWhatWasPassedOver) {
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) limiter_.Write(LogLevel::kWarn, "transfer", "a", {}, "refused a");
  now_ += seconds(1);
  limiter_.Write(LogLevel::kWarn, "transfer", "a", {}, "refused {} again");
  const std::string out = testing::internal::GetCapturedStderr();
  EXPECT_NE(out.find("[warn] transfer: refused a\n"), std::string::npos) << out;
  EXPECT_NE(out.find("refused {} again (and 2 more before)\n"), std::string::npos) << out;
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 2);
}

}  // namespace
}  // namespace ferry
