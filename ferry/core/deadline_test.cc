// Tests of deadlines and of their conversion for poll().
#include "ferry/core/deadline.h"

#include <gtest/gtest.h>

#include <limits>

namespace ferry {
namespace {

using std::chrono::hours;
using std::chrono::seconds;

TEST(Deadline, NeverDoesNotExpire) {
  const Deadline never = Deadline::Never();
  EXPECT_TRUE(never.never());
  EXPECT_FALSE(never.expired());
  EXPECT_EQ(never.PollMillis(), -1);
}

TEST(Deadline, OfNoTimeHasExpired) {
  const Deadline now = Deadline::After(seconds(0));
  EXPECT_TRUE(now.expired());
  EXPECT_FALSE(now.never());
  EXPECT_EQ(now.PollMillis(), 0);
  EXPECT_EQ(Deadline::After(seconds(-5)).PollMillis(), 0);
}

TEST(Deadline, LiesItsWaitAfterNow) {
  const auto before = Clock::now();
  const Deadline deadline = Deadline::After(milliseconds(1500));
  const auto after = Clock::now();
  EXPECT_GE(deadline.when(), before + milliseconds(1500));
  EXPECT_LE(deadline.when(), after + milliseconds(1500));
  EXPECT_FALSE(deadline.expired());
}

// Regression: rounded down, poll() would return early and the caller would spin through the last
// millisecond.
TEST(Deadline, OfMoreTimeThanTheClockHasIsNever) {
  EXPECT_TRUE(Deadline::After(milliseconds::max()).never());
  EXPECT_TRUE(Deadline::After(Clock::duration::max()).never());
  EXPECT_FALSE(Deadline::After(std::chrono::hours(24 * 365)).never());
}

TEST(Deadline, PollMillisRoundsUp) {
  for (int i = 0; i < 1000; ++i) {
    const Deadline deadline = Deadline::After(microseconds(100'000 + i));
    const milliseconds wait(deadline.PollMillis());
    EXPECT_GE(Clock::now() + wait, deadline.when());
  }
}

TEST(Deadline, PollMillisStopsAtTheLargestInt) {
  EXPECT_EQ(Deadline::After(hours(24 * 365)).PollMillis(), std::numeric_limits<int>::max());
}

TEST(Deadline, SoonerIsTheEarlierOfTwo) {
  const Deadline soon = Deadline::After(seconds(1));
  const Deadline late = Deadline::After(seconds(2));
  EXPECT_EQ(soon.Sooner(late).when(), soon.when());
  EXPECT_EQ(late.Sooner(soon).when(), soon.when());
  EXPECT_EQ(Deadline::Never().Sooner(soon).when(), soon.when());
  EXPECT_TRUE(Deadline::Never().Sooner(Deadline::Never()).never());
}

}  // namespace
}  // namespace ferry
