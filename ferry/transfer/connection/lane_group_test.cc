// Tests how work gets to the lanes of a connection.
#include "ferry/transfer/connection/lane_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "ferry/transfer/testing/lone_lanes.h"

namespace ferry::transfer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class LaneGroupTest : public ::testing::Test {
 protected:
  // Runs on these lanes; what follows is recorded as lane 99.
  void Run(LaneSet lanes) {
    lanes_.lanes().Run(
        lanes, [this](LaneEngine& lane) { seen_.push_back(lane.index()); },
        [this] { seen_.push_back(99); });
  }

  LoneLanes lanes_{Config{}, 4};
  std::vector<std::uint32_t> seen_;
};

TEST_F(LaneGroupTest, RunsOnEachChosenLaneAndThenOnTheHomeLoop) {
  Run(LaneBit(1) | LaneBit(3));
  EXPECT_THAT(seen_, IsEmpty()) << "it only posts";
  lanes_.Drive();
  EXPECT_THAT(seen_, ElementsAre(1, 3, 99));
}

TEST_F(LaneGroupTest, AllLanesAreThoseThatThereAre) {
  Run(kAllLanes);
  lanes_.Drive();
  EXPECT_THAT(seen_, ElementsAre(0, 1, 2, 3, 99));
}

TEST_F(LaneGroupTest, WithoutALaneWhatFollowsRunsAllTheSame) {
  Run(0);
  EXPECT_THAT(seen_, IsEmpty());
  lanes_.Drive();
  EXPECT_THAT(seen_, ElementsAre(99));
}

TEST_F(LaneGroupTest, PostsToOneLane) {
  lanes_.lanes().Post(2, [this](LaneEngine& lane) { seen_.push_back(lane.index()); });
  lanes_.Drive();
  EXPECT_THAT(seen_, ElementsAre(2));
}

TEST(LaneGroup, WithTwoLanesBothAreForBulk) {
  EXPECT_EQ(FirstBulkLaneOf(1), 0u);
  EXPECT_EQ(FirstBulkLaneOf(2), 0u);
  EXPECT_EQ(FirstBulkLaneOf(3), 1u);
}

}  // namespace
}  // namespace ferry::transfer
