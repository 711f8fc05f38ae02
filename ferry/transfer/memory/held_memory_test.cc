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

TEST_F(HeldMemoryTest, IsInExcessOfItsOwnLimitByATenth) {
  constexpr std::uint64_t kHeldMax = kMiB + kMiB / 10;
  one_.Add(kHeldMax);
  EXPECT_TRUE(one_.full());
  EXPECT_FALSE(one_.FindExcess(kHeldMax));
  one_.Add(1);
  const auto excess = one_.FindExcess(0);
  ASSERT_TRUE(excess);
  EXPECT_EQ(excess->held, kHeldMax + 1);
  EXPECT_EQ(excess->limit, kMiB);
  EXPECT_STREQ(excess->setting, "FERRY_PEER_MEMORY");
  EXPECT_FALSE(other_.FindExcess(kHeldMax));
}

TEST_F(HeldMemoryTest, AnswersForThePoolOnlyIfItsPeerLeavesManyAnswersUnacknowledged) {
  constexpr std::uint64_t kHeldMax = 2 * kMiB + 2 * HeldMemory::kGuaranteed;
  other_.Add(kHeldMax + kHeldMax / 10);
  EXPECT_FALSE(one_.FindExcess(kHeldMax));
  other_.Add(1);
  EXPECT_FALSE(one_.FindExcess(HeldMemory::kGuaranteed));
  const auto excess = one_.FindExcess(HeldMemory::kGuaranteed + 1);
  ASSERT_TRUE(excess);
  EXPECT_EQ(excess->limit, kHeldMax);
}

TEST_F(HeldMemoryTest, OptionalMemoryLeavesRoomForTheReserve) {
  HeldMemory third;
  third.SetPool(pool_, 600 * kKiB);
  EXPECT_FALSE(third.TryAdd(500 * kKiB));
  EXPECT_TRUE(third.TryAdd(400 * kKiB));
  third.Add(600 * kKiB);
  EXPECT_TRUE(third.HasRoom(24 * kKiB));
  EXPECT_FALSE(third.HasRoom(25 * kKiB));
  EXPECT_LE(third.held(), third.limit());
}

TEST_F(HeldMemoryTest, TheLimitIsNeverLessThanTheReserveAndTheGuarantee) {
  HeldMemory third;
  third.SetPool(pool_, 4 * kMiB);
  EXPECT_EQ(third.limit(), 4 * kMiB + HeldMemory::kGuaranteed);
  third.Add(4 * kMiB);
  EXPECT_TRUE(third.HasRoom(HeldMemory::kGuaranteed));
  EXPECT_FALSE(third.FindExcess(0));
}

TEST_F(HeldMemoryTest, BuffersCountForTheirConnectionOnlyAndLateAnswersForBoth) {
  one_.AddBuffers(100);
  EXPECT_EQ(one_.held(), 100u);
  EXPECT_EQ(pool_->held(), 0u);
  one_.AddLateAnswer();
  EXPECT_EQ(one_.late_answers(), 1u);
  EXPECT_EQ(one_.held(), 100 + HeldMemory::kLateAnswerBytes);
  EXPECT_EQ(pool_->held(), HeldMemory::kLateAnswerBytes);
  one_.RemoveLateAnswers(1);
  one_.RemoveBuffers(100);
  EXPECT_EQ(one_.held(), 0u);
  EXPECT_EQ(pool_->held(), 0u);
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
