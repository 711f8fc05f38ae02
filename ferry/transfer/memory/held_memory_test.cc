// Tests limits of memory held for peers.
#include "ferry/transfer/memory/held_memory.h"

#include <gtest/gtest.h>

#include <memory>

#include "ferry/core/units.h"

namespace ferry::transfer {
namespace {

class HeldMemoryTest : public ::testing::Test {
 protected:
  HeldMemoryTest() {
    one_.SetPool(pool_);
    other_.SetPool(pool_);
  }

  std::shared_ptr<HeldMemoryPool> pool_ = std::make_shared<HeldMemoryPool>(2 * kMiB, kMiB);
  HeldMemory one_;
  HeldMemory other_;
};

TEST_F(HeldMemoryTest, AConnectionHoldsAtMostItsShareOfOptionalMemory) {
  EXPECT_TRUE(one_.TryAdd(900 * kKiB));
  EXPECT_FALSE(one_.TryAdd(200 * kKiB));
  EXPECT_EQ(one_.held(), 900 * kKiB);
  EXPECT_FALSE(one_.full());
  one_.RemoveTried(800 * kKiB);
  EXPECT_TRUE(one_.TryAdd(200 * kKiB));
  EXPECT_EQ(pool_->held(), 300 * kKiB);
}

TEST_F(HeldMemoryTest, MandatoryMemoryIsCountedAndNeverRefused) {
  one_.Add(3 * kMiB);
  EXPECT_EQ(pool_->held(), 3 * kMiB);
  EXPECT_TRUE(one_.full());
  EXPECT_TRUE(other_.full());
  EXPECT_FALSE(one_.HasRoom(HeldMemory::kGuaranteed + 1));
}

TEST_F(HeldMemoryTest, IsOverfullAtTwiceTheLimitsOnly) {
  one_.Add(2 * kMiB - 1);
  EXPECT_TRUE(one_.full());
  EXPECT_FALSE(one_.overfull());
  one_.Add(1);
  EXPECT_TRUE(one_.overfull());
  EXPECT_FALSE(other_.overfull());
  one_.Add(2 * kMiB);
  EXPECT_TRUE(other_.overfull());
}

TEST_F(HeldMemoryTest, EachConnectionKeepsItsGuaranteeWhenOthersHaveUsedUpTheRest) {
  other_.Add(5 * kMiB);
  EXPECT_TRUE(one_.TryAdd(HeldMemory::kGuaranteed / 2));
  EXPECT_TRUE(one_.HasRoom(HeldMemory::kGuaranteed / 2));
  one_.AddTried(HeldMemory::kGuaranteed / 2);
  EXPECT_FALSE(one_.HasRoom(1));
  EXPECT_FALSE(one_.TryAdd(1));
  EXPECT_EQ(one_.held(), HeldMemory::kGuaranteed);
}

TEST_F(HeldMemoryTest, TheEndOfAConnectionGivesBackWhatItHolds) {
  {
    HeldMemory third;
    third.SetPool(pool_);
    third.Add(100);
    third.AddTried(50);
    EXPECT_EQ(pool_->held(), 150u);
  }
  EXPECT_EQ(pool_->held(), 0u);
}

}  // namespace
}  // namespace ferry::transfer
