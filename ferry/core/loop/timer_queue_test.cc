// Tests of a loop's timers.
#include "ferry/core/loop/timer_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace ferry {
namespace {

using testing::ElementsAre;

class TimerQueueTest : public testing::Test {
 protected:
  TimerQueue::Id Add(int milliseconds_from_start, int number) {
    return timers_.Add(At(milliseconds_from_start), [this, number] { ran_.push_back(number); });
  }
  static Clock::time_point At(int ms) { return Clock::time_point(milliseconds(ms)); }

  TimerQueue timers_;
  std::vector<int> ran_;
};

TEST_F(TimerQueueTest, RunsWhatIsDueInTheOrderOfItsTimesAndThenOfItsAdding) {
  Add(30, 3);
  Add(10, 1);
  Add(20, 21);
  Add(20, 22);
  EXPECT_EQ(timers_.next(), At(10));
  EXPECT_FALSE(timers_.RunDue(At(9)));
  EXPECT_TRUE(timers_.RunDue(At(20)));
  EXPECT_THAT(ran_, ElementsAre(1, 21, 22));
  EXPECT_EQ(timers_.next(), At(30));
  EXPECT_TRUE(timers_.RunDue(At(40)));
  EXPECT_TRUE(timers_.empty());
  EXPECT_EQ(timers_.next(), Clock::time_point::max());
}

TEST_F(TimerQueueTest, DoesNotRunACancelledTimer) {
  const auto first = Add(10, 1);
  Add(10, 2);
  timers_.Cancel(first);
  timers_.Cancel(first);
  EXPECT_TRUE(timers_.RunDue(At(10)));
  EXPECT_THAT(ran_, ElementsAre(2));
  timers_.Cancel(first);
}

TEST_F(TimerQueueTest, LetsATimerCancelOneThatIsDueWithIt) {
  TimerQueue::Id second = 0;
  timers_.Add(At(10), [&] { timers_.Cancel(second); });
  second = Add(10, 2);
  EXPECT_TRUE(timers_.RunDue(At(10)));
  EXPECT_THAT(ran_, ElementsAre());
  EXPECT_TRUE(timers_.empty());
}

TEST_F(TimerQueueTest, LeavesATimerThatATimerAddsForNowToTheNextCall) {
  timers_.Add(At(10), [&] { Add(5, 2); });
  EXPECT_TRUE(timers_.RunDue(At(10)));
  EXPECT_THAT(ran_, ElementsAre());
  EXPECT_TRUE(timers_.RunDue(timers_.next()));
  EXPECT_THAT(ran_, ElementsAre(2));
}

TEST_F(TimerQueueTest, GivesBackTheTasksOfAllTimersWithoutRunningThem) {
  const auto alive = std::make_shared<int>(0);  // with each timer
  for (int i = 0; i < 3; ++i) timers_.Add(At(i), [alive] { ADD_FAILURE(); });
  EXPECT_EQ(timers_.TakeAll().size(), 3U);
  EXPECT_EQ(alive.use_count(), 1);
  EXPECT_TRUE(timers_.empty());
  EXPECT_FALSE(timers_.RunDue(At(10)));
}

}  // namespace
}  // namespace ferry
