// Tests the queue of requested reads.
#include <gtest/gtest.h>

#include <memory>

#include "ferry/transfer/lane/send_window.h"

namespace ferry::transfer {
namespace {

TEST(ReadRequests, MatchOnlyTheOldest) {
  ReadRequests reads;
  EXPECT_EQ(reads.oldest(), nullptr);
  EXPECT_EQ(reads.Find(1, 0), nullptr);
  reads.Add({nullptr, 1, 0, 100, 10});
  reads.Add({nullptr, 1, 1, 50, 5});
  EXPECT_EQ(reads.Find(1, 1), nullptr);
  ASSERT_NE(reads.Find(1, 0), nullptr);
  EXPECT_EQ(reads.bytes(), 150u);
  EXPECT_EQ(reads.cost(), 15u);
  EXPECT_EQ(reads.TakeOldest().bytes, 100u);
  EXPECT_NE(reads.Find(1, 1), nullptr);
  EXPECT_EQ(reads.bytes(), 50u);
  EXPECT_EQ(reads.cost(), 5u);
}

TEST(ReadRequests, KeepTheirPlacesWhenAbandoned) {
  ReadRequests reads;
  const auto goes = std::make_shared<OperationState>();
  const auto stays = std::make_shared<OperationState>();
  for (std::uint32_t slice = 0; slice < 2; ++slice) {
    reads.Add({goes, 1, slice, 100, 10});
    reads.Add({stays, 2, slice, 100, 10});
  }
  EXPECT_EQ(reads.Abandon(goes.get()), 2u);
  EXPECT_EQ(reads.Abandon(goes.get()), 0u);
  EXPECT_EQ(reads.size(), 4u);
  EXPECT_TRUE(reads.HoldsWork());
  EXPECT_EQ(reads.TakeOldest().operation, nullptr);
  EXPECT_EQ(reads.TakeOldest().operation, stays);
  EXPECT_EQ(reads.TakeAll().size(), 2u);
  EXPECT_FALSE(reads.HoldsWork());
  EXPECT_EQ(reads.bytes(), 0u);
}

}  // namespace
}  // namespace ferry::transfer
