// Tests how lanes share bulk data.
#include "ferry/transfer/lane/lane_site.h"

#include <gtest/gtest.h>

namespace ferry::transfer {
namespace {

TEST(LaneShares, OfLanesOfUnknownRateAreEqual) {
  const LaneShares shares(4, 1);
  for (std::size_t lane = 0; lane < 4; ++lane) EXPECT_DOUBLE_EQ(shares.ShareOf(lane), 1.0 / 3);
}

TEST(LaneShares, FollowTheRatesAndALaneOfUnknownRateIsAnAverageOne) {
  LaneShares shares(4, 1);
  shares.SetRate(1, 100);
  EXPECT_DOUBLE_EQ(shares.ShareOf(1), 1.0 / 3) << "it is the only one with a rate";
  shares.SetRate(2, 300);
  EXPECT_DOUBLE_EQ(shares.ShareOf(1), 0.25 * 2 / 3);
  EXPECT_DOUBLE_EQ(shares.ShareOf(2), 0.75 * 2 / 3);
  EXPECT_DOUBLE_EQ(shares.ShareOf(3), 1.0 / 3);
}

// It carries bulk only while it replaces all lanes for that.
TEST(LaneShares, TheFirstLanesRateChangesNothing) {
  LaneShares shares(3, 1);
  shares.SetRate(0, 1000);
  shares.SetRate(1, 100);
  shares.SetRate(2, 100);
  for (std::size_t lane = 0; lane < 3; ++lane) EXPECT_DOUBLE_EQ(shares.ShareOf(lane), 0.5);
}

}  // namespace
}  // namespace ferry::transfer
