// Tests when a lane is suspect and a peer lost, without a clock.
#include "ferry/session/heartbeat.h"

#include <gtest/gtest.h>

namespace ferry::session {
namespace {

constexpr auto kNoGap = Clock::duration::zero();
// So many seconds after the start.
Clock::time_point After(int seconds) {
  return Clock::time_point{} + milliseconds(1000 * (1000 + seconds));
}

class HeartbeatTest : public ::testing::Test {
 protected:
  HeartbeatTest() {
    config_.heartbeat_interval = milliseconds(1000);
    config_.lane_timeout = milliseconds(3000);
    config_.peer_timeout = milliseconds(10'000);
    heartbeat_.Start(After(0));
  }
  Heartbeat::Sign Beat(std::uint64_t bytes, int when, Clock::duration missed = kNoGap) {
    return heartbeat_.Beat(0, bytes, After(when), missed);
  }

  Config config_;
  Heartbeat heartbeat_{&config_, 2};
};

TEST_F(HeartbeatTest, ALaneIsHeardWhenBytesHaveCome) {
  EXPECT_FALSE(Beat(0, 1).heard);
  EXPECT_EQ(heartbeat_.heard_at(0), After(0));
  EXPECT_TRUE(Beat(5, 2).heard);
  EXPECT_EQ(heartbeat_.heard_at(0), After(2));
  EXPECT_FALSE(Beat(5, 3).heard);
  EXPECT_EQ(Beat(5, 4).quiet, milliseconds(2000));
}

TEST_F(HeartbeatTest, ALaneThatWasReplacedInAGapIsNotHeardInTheFuture) {
  heartbeat_.Restart(0, After(20));
  (void)Beat(0, 21, milliseconds(20'000));
  EXPECT_EQ(heartbeat_.heard_at(0), After(21));
}

TEST_F(HeartbeatTest, OneGapIsExcusedUntilTheLaneIsHeard) {
  (void)Beat(0, 10, milliseconds(9000));
  EXPECT_EQ(heartbeat_.heard_at(0), After(9));
  (void)Beat(0, 20, milliseconds(9000));
  EXPECT_EQ(heartbeat_.heard_at(0), After(9)) << "the second gap counts as silence";
  EXPECT_TRUE(Beat(1, 21).heard);
  (void)Beat(1, 30, milliseconds(8000));
  EXPECT_EQ(heartbeat_.heard_at(0), After(29));
}

TEST_F(HeartbeatTest, ANewLaneIsHeardAndHasItsGap) {
  (void)Beat(0, 10, milliseconds(9000));
  heartbeat_.Restart(0, After(12));
  EXPECT_EQ(heartbeat_.heard_at(0), After(12));
  (void)Beat(0, 20, milliseconds(3000));
  EXPECT_EQ(heartbeat_.heard_at(0), After(15));
}

TEST_F(HeartbeatTest, SilenceBeginsOnceUntilItEnds) {
  EXPECT_FALSE(Beat(0, 2).is_suspect);
  EXPECT_TRUE(Beat(0, 3).has_just_begun);
  const auto still = Beat(0, 4);
  EXPECT_TRUE(still.is_suspect);
  EXPECT_FALSE(still.has_just_begun);
  EXPECT_FALSE(Beat(1, 5).is_suspect);
  EXPECT_FALSE(Beat(1, 7).is_suspect);
  EXPECT_TRUE(Beat(1, 8).has_just_begun);
}

TEST_F(HeartbeatTest, ALaneIsNotSuspectBeforeTwoHeartbeatsWereDue) {
  config_.lane_timeout = milliseconds(1);
  EXPECT_FALSE(Beat(0, 1).is_suspect);
  EXPECT_TRUE(Beat(0, 2).is_suspect);
}

TEST_F(HeartbeatTest, ThePeerIsLostWhenNoLaneWasHeardForItsTimeout) {
  EXPECT_TRUE(heartbeat_.Beat(1, 7, After(5), kNoGap).heard);
  EXPECT_FALSE(heartbeat_.IsPeerLost(After(14)));
  EXPECT_TRUE(heartbeat_.IsPeerLost(After(15)));
}

TEST_F(HeartbeatTest, TheNextBeatIsDueNoLaterThanTheLossOfThePeer) {
  EXPECT_EQ(heartbeat_.Plan(After(1)), After(2));
  EXPECT_EQ(heartbeat_.Plan(After(9)), After(10));
  config_.peer_timeout = milliseconds(2000);
  EXPECT_EQ(heartbeat_.Plan(After(1)), After(2));
  config_.heartbeat_interval = milliseconds(1900);
  EXPECT_EQ(heartbeat_.Plan(After(1)), After(2));
}

TEST_F(HeartbeatTest, ABeatIsLateFromAWholeIntervalOn) {
  (void)heartbeat_.Plan(After(0));
  EXPECT_EQ(heartbeat_.Lateness(After(1) + milliseconds(999)), kNoGap);
  EXPECT_EQ(heartbeat_.Lateness(After(3)), milliseconds(2000));
}

}  // namespace
}  // namespace ferry::session
