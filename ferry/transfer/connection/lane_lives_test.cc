// Tests what the home loop knows of its lanes.
#include <gtest/gtest.h>

#include "ferry/transfer/connection/lane_monitor.h"

namespace ferry::transfer {
namespace {

// So many seconds after the start.
Clock::time_point After(int seconds) {
  return Clock::time_point{} + milliseconds(1000 * (1000 + seconds));
}

TEST(LaneLives, BeginUpAndNotReset) {
  const LaneLives lives(3);
  EXPECT_TRUE(lives.up(0) && lives.up(2));
  EXPECT_TRUE(lives.AnyUp());
  EXPECT_FALSE(lives.AllReset());
  EXPECT_FALSE(lives.Abandoned());
}

TEST(LaneLives, LanesBehindAPlaceAreAskedAlone) {
  LaneLives lives(3);
  lives.SetDown(1);
  EXPECT_TRUE(lives.AnyUp(1));
  lives.SetDown(2);
  EXPECT_FALSE(lives.AnyUp(1));
  EXPECT_TRUE(lives.AnyUp());
}

TEST(LaneLives, AllResetMeansEachOfThem) {
  LaneLives lives(2);
  lives.SetLost(0, net::LaneLoss::kReset);
  EXPECT_FALSE(lives.AllReset());
  lives.SetLost(1, net::LaneLoss::kUnreachable);
  EXPECT_FALSE(lives.AllReset());
  lives.SetLost(1, net::LaneLoss::kReset);
  EXPECT_TRUE(lives.AllReset());
  lives.SetUp(0, After(0));
  EXPECT_FALSE(lives.AllReset());
}

// A replacement that was never used says nothing new about its predecessor's end.
TEST(LaneLives, ALossOfAnUnusedLaneKeepsWhatIsKnown) {
  LaneLives lives(1);
  lives.SetLost(0, net::LaneLoss::kReset);
  lives.SetUp(0, After(0));
  lives.SetLost(0, std::nullopt);
  EXPECT_TRUE(lives.AllReset());
}

TEST(LaneLives, AbandonedIfTheRestIsBeingReplaced) {
  LaneLives lives(2);
  lives.SetFrozen(0, /*was_heard=*/true);
  EXPECT_FALSE(lives.Abandoned());
  lives.SetLost(1, net::LaneLoss::kReset);
  EXPECT_TRUE(lives.Abandoned());
  EXPECT_FALSE(lives.AllReset());
  lives.SetFrozen(1, /*was_heard=*/true);
  EXPECT_FALSE(lives.Abandoned()) << "none was reset";
}

TEST(LaneLives, AFrozenLaneThatThePeerNeverUsedKeepsWhatIsKnown) {
  LaneLives lives(1);
  lives.SetLost(0, net::LaneLoss::kReset);
  lives.SetFrozen(0, /*was_heard=*/false);
  EXPECT_TRUE(lives.AllReset());
  lives.SetFrozen(0, /*was_heard=*/true);
  EXPECT_FALSE(lives.AllReset());
}

TEST(LaneLives, TheBytesThatHaveComeAreNoticed) {
  LaneLives lives(2);
  lives.Notice(1, 7, After(1));
  EXPECT_TRUE(lives.NoticedSince(1, After(0)));
  EXPECT_FALSE(lives.NoticedSince(0, After(0)));
  EXPECT_TRUE(lives.AnyNoticedSince(After(0)));
  EXPECT_FALSE(lives.AnyNoticedSince(After(1)));
  lives.Notice(1, 7, After(3));
  EXPECT_FALSE(lives.NoticedSince(1, After(2)));
}

TEST(LaneLives, AReplacementWasNotUpBefore) {
  LaneLives lives(1);
  EXPECT_TRUE(lives.UpSince(0, After(0)));
  lives.SetUp(0, After(1));
  EXPECT_FALSE(lives.UpSince(0, After(0)));
  EXPECT_TRUE(lives.UpSince(0, After(1)));
  lives.SetDown(0);
  EXPECT_FALSE(lives.UpSince(0, After(1)));
}

}  // namespace
}  // namespace ferry::transfer
