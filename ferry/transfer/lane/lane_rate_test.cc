// Tests the measurement of a lane's throughput.
#include <gtest/gtest.h>

#include "ferry/transfer/lane/slice_sender.h"

namespace ferry::transfer {
namespace {

using std::chrono::seconds;

TEST(LaneRate, IsUnknownUntilEnoughTimeHasPassed) {
  LaneRate rate(seconds(1));
  const Clock::time_point start = Clock::now();
  rate.Restart(start);
  rate.Add(1000, start + milliseconds(10));
  EXPECT_EQ(rate.rate(), 0u);
  rate.Add(1000, start + milliseconds(100));
  EXPECT_NEAR(static_cast<double>(rate.rate()), 20'000, 2);
}

TEST(LaneRate, AveragesAndDoesNotCountTimeWithoutData) {
  LaneRate rate(seconds(1));
  const Clock::time_point start = Clock::now();
  rate.Restart(start);
  rate.Add(1000, start + milliseconds(100));  // 10 000 a second
  rate.Restart(start + seconds(60));
  rate.Add(3000, start + seconds(60) + milliseconds(100));  // 30 000
  EXPECT_NEAR(static_cast<double>(rate.rate()), 20'000, 4);
}

TEST(LaneRate, LimitsWhatIsInFlightByWhatASlowLaneCarriesWithinTheGrace) {
  LaneRate rate(seconds(1));
  const Clock::time_point start = Clock::now();
  EXPECT_EQ(rate.drainable(), ~std::uint64_t{0});
  rate.AddSlice(1000, start, start + milliseconds(10));  // fast: no limit
  EXPECT_EQ(rate.drainable(), ~std::uint64_t{0});
  rate.AddSlice(1000, start, start + seconds(2));
  EXPECT_EQ(rate.drainable(), 500u);
  rate.AddSlice(1000, start, start + milliseconds(10));  // a lower bound: it carries at least this
  EXPECT_EQ(rate.drainable(), 100'000u);
  rate.AddSlice(0, start, start + seconds(2));
  EXPECT_EQ(rate.drainable(), 1u);  // one slice goes in any case
}

}  // namespace
}  // namespace ferry::transfer
