// Tests how long the slices of a cancelled operation are waited for.
#include <gtest/gtest.h>

#include "ferry/transfer/connection/lane_monitor.h"
#include "ferry/transfer/connection/operation_runner.h"

namespace ferry::transfer {
namespace {

constexpr OperationDrain::Limits kDrainLimits{.grace = milliseconds(2000),
                                              .total = milliseconds(10000)};
// So many milliseconds after the cancel.
Clock::time_point Later(int ms) { return Clock::time_point{} + milliseconds(1000000 + ms); }

// Two lanes; the first holds the operation.
class OperationDrainTest : public ::testing::Test {
 protected:
  using Verdict = OperationDrain::Verdict;

  OperationDrainTest() {
    look_.holds[0] = true;
    drain_.Begin(Later(0));
    EXPECT_EQ(Judge(Later(0)), Verdict::kWait);
  }

  void Hear(std::size_t lane, Clock::time_point when) { lives_.Notice(lane, ++bytes_, when); }
  void Acknowledge() { look_.acknowledged[0] += 1; }
  Verdict Judge(Clock::time_point now) { return drain_.Judge(look_, lives_, kDrainLimits, now); }

  LaneLives lives_{2};
  DrainLook look_{2};
  OperationDrain drain_;
  std::uint64_t bytes_ = 0;
};

TEST_F(OperationDrainTest, ASilentPeerIsGivenUpAfterTheGrace) {
  EXPECT_EQ(Judge(Later(1000)), Verdict::kWait);
  EXPECT_EQ(Judge(Later(1999)), Verdict::kWait);
  EXPECT_EQ(Judge(Later(2000)), Verdict::kGiveUp);
  EXPECT_EQ(drain_.began(), Later(0));
}

TEST_F(OperationDrainTest, ProgressOfAHeardPeerBeginsTheGraceAnew) {
  Hear(0, Later(1400));
  Acknowledge();
  EXPECT_EQ(Judge(Later(1500)), Verdict::kAskLanes);
  EXPECT_EQ(Judge(Later(3400)), Verdict::kWait);
  EXPECT_EQ(Judge(Later(3500)), Verdict::kGiveUp);
}

// The kernel of a frozen peer acknowledges, too.
TEST_F(OperationDrainTest, AcknowledgementsOfASilentPeerDoNotCount) {
  Acknowledge();
  EXPECT_EQ(Judge(Later(1500)), Verdict::kWait);
  EXPECT_EQ(Judge(Later(2000)), Verdict::kGiveUp);
}

TEST_F(OperationDrainTest, AcknowledgementsOfOtherLanesDoNotCount) {
  Hear(0, Later(1400));
  look_.acknowledged[1] = 7;
  EXPECT_EQ(Judge(Later(1500)), Verdict::kWait);
  EXPECT_EQ(Judge(Later(2000)), Verdict::kGiveUp);
}

TEST_F(OperationDrainTest, ProgressDoesNotExtendTheTotal) {
  for (int ms = 1000; ms < 10000; ms += 1000) {
    Hear(0, Later(ms - 1));
    Acknowledge();
    EXPECT_EQ(Judge(Later(ms)), Verdict::kAskLanes) << ms;
  }
  Hear(0, Later(9999));
  Acknowledge();
  EXPECT_EQ(Judge(Later(10000)), Verdict::kGiveUp);
}

TEST_F(OperationDrainTest, ALaneThatIsDownIsLeftToItsReplacement) {
  lives_.SetDown(0);
  EXPECT_EQ(Judge(Later(2000)), Verdict::kAskLanes);
  EXPECT_EQ(Judge(Later(4000)), Verdict::kAskLanes);
}

TEST_F(OperationDrainTest, ASilentLaneIsLeftToItsReplacementWhileAnotherIsHeard) {
  Hear(1, Later(1900));
  EXPECT_EQ(Judge(Later(2000)), Verdict::kAskLanes);
  EXPECT_EQ(Judge(Later(3990)), Verdict::kWait);
  EXPECT_EQ(Judge(Later(4000)), Verdict::kGiveUp) << "now nothing is heard any more";
}

TEST_F(OperationDrainTest, ALaneThatCameUpDuringTheGraceHasOneOfItsOwn) {
  lives_.SetUp(0, Later(500));
  EXPECT_EQ(Judge(Later(2000)), Verdict::kAskLanes);
  EXPECT_EQ(Judge(Later(4000)), Verdict::kGiveUp);
}

TEST_F(OperationDrainTest, LooksFourTimesPerGraceAndAtItsEnd) {
  EXPECT_EQ(drain_.NextLook(kDrainLimits, Later(0)), Later(500));
  EXPECT_EQ(drain_.NextLook(kDrainLimits, Later(1800)), Later(2000));
}

// A write that has a notification drains that, too.
TEST_F(OperationDrainTest, ASecondRoundBelongsToTheSameTotal) {
  drain_.Begin(Later(9000));
  EXPECT_EQ(Judge(Later(9500)), Verdict::kWait);
  EXPECT_EQ(Judge(Later(10000)), Verdict::kGiveUp);
  EXPECT_EQ(drain_.began(), Later(0));
}

}  // namespace
}  // namespace ferry::transfer
