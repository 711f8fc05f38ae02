// Tests which lanes carry an operation.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "ferry/transfer/connection/lane_monitor.h"
#include "ferry/transfer/connection/operation_runner.h"

namespace ferry::transfer {
namespace {

// A host-to-host write of so many slices.
std::unique_ptr<OperationState> NewWriteOf(std::size_t slices, std::uint64_t bytes,
                                           bool staged = false) {
  auto plan = std::make_shared<Plan>();
  plan->slice_count = slices;
  plan->bytes = bytes;
  plan->staged = staged;
  auto operation = std::make_unique<OperationState>();
  operation->plan = std::move(plan);
  return operation;
}
std::unique_ptr<OperationState> NewSmall() { return NewWriteOf(1, 100); }

TEST(SliceDealer, BulkGoesToAsManyLanesAsItHasSlices) {
  LaneLives lives(4);
  SliceDealer dealer(&lives);
  EXPECT_EQ(dealer.Begin(NewWriteOf(1, 1 << 20).get()), 0b0010u);
  EXPECT_EQ(dealer.Begin(NewWriteOf(2, 2 << 20).get()), 0b0110u);
  EXPECT_EQ(dealer.Begin(NewWriteOf(9, 9 << 20).get()), 0b1110u);
}

TEST(SliceDealer, WithTwoLanesBothCarryEverything) {
  LaneLives lives(2);
  SliceDealer dealer(&lives);
  const auto small = NewSmall();
  EXPECT_EQ(dealer.Begin(small.get()), 0b01u);
  EXPECT_FALSE(small->small);
  EXPECT_EQ(dealer.LanesFor(2), 0b11u);
}

TEST(SliceDealer, LanesThatAreDownAreLeftOut) {
  LaneLives lives(4);
  SliceDealer dealer(&lives);
  lives.SetDown(1);
  EXPECT_EQ(dealer.LanesFor(1), 0b0100u);
  EXPECT_EQ(dealer.LanesFor(3), 0b1100u);
}

TEST(SliceDealer, WithoutALaneForBulkTheFirstCarriesItAndTheOthersGetItForLater) {
  LaneLives lives(3);
  SliceDealer dealer(&lives);
  const auto bulk = NewWriteOf(2, 2 << 20);
  EXPECT_FALSE(dealer.FirstCarries(*bulk));
  lives.SetDown(1);
  lives.SetDown(2);
  EXPECT_EQ(dealer.LanesFor(2), 0b111u);
  EXPECT_TRUE(dealer.FirstCarries(*bulk));
}

TEST(SliceDealer, SmallOperationsGoWithTheMessages) {
  LaneLives lives(3);
  SliceDealer dealer(&lives);
  const auto small = NewSmall();
  EXPECT_EQ(dealer.Begin(small.get()), 0b001u);
  EXPECT_TRUE(small->small);
  EXPECT_TRUE(dealer.FirstCarries(*small));
  EXPECT_NE(dealer.Begin(NewWriteOf(1, kMaxSmallBytes + 1).get()), 0b001u);
  EXPECT_NE(dealer.Begin(NewWriteOf(1, 100, /*staged=*/true).get()), 0b001u);
}

TEST(SliceDealer, SmallOperationsUseBulkLanesWhileTheFirstIsDown) {
  LaneLives lives(3);
  SliceDealer dealer(&lives);
  lives.SetDown(0);
  EXPECT_EQ(dealer.Begin(NewSmall().get()), 0b010u);
}

TEST(SliceDealer, ADeepQueueOfSmallOperationsIsBulkForAWhile) {
  LaneLives lives(3);
  SliceDealer dealer(&lives);
  std::vector<std::unique_ptr<OperationState>> in_flight;
  for (std::uint64_t i = 0; i < kMaxSmallDepth; ++i) {
    in_flight.push_back(NewSmall());
    EXPECT_EQ(dealer.Begin(in_flight.back().get()), 0b001u);
  }
  const auto one_more = NewSmall();
  EXPECT_EQ(dealer.Begin(one_more.get()), 0b010u);
  dealer.End(one_more.get());
  for (const auto& operation : in_flight) dealer.End(operation.get());
  for (std::uint64_t i = 1; i < kSmallAsBulk; ++i) {
    const auto small = NewSmall();
    EXPECT_EQ(dealer.Begin(small.get()), 0b010u);
    dealer.End(small.get());
  }
  EXPECT_EQ(dealer.Begin(NewSmall().get()), 0b001u);
}

TEST(SliceDealer, AnEndCountsOnce) {
  LaneLives lives(3);
  SliceDealer dealer(&lives);
  const auto small = NewSmall();
  for (std::uint64_t i = 0; i < 2 * kMaxSmallDepth; ++i) {
    EXPECT_EQ(dealer.Begin(small.get()), 0b001u);
    dealer.End(small.get());
    dealer.End(small.get());
  }
}

}  // namespace
}  // namespace ferry::transfer
