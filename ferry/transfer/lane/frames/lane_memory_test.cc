// Tests the accounting of what a lane holds for its peer.
#include <gtest/gtest.h>

#include <memory>

#include "ferry/transfer/lane/frames/frame_sender.h"
#include "ferry/transfer/lane/lane_site.h"

namespace ferry::transfer {
namespace {

TEST(LaneMemory, ChargesTheConnectionAtLeastForWhatItHolds) {
  HeldMemory connection;
  LaneMemory memory(&connection, 1);
  for (int i = 0; i < 100; ++i) {
    memory.Hold(777);
    EXPECT_GE(connection.held(), memory.held());
    EXPECT_LE(connection.held(), memory.held() + 16 * 1024);
  }
  for (int i = 0; i < 100; ++i) {
    memory.Release(777);
    EXPECT_GE(connection.held(), memory.held());
    EXPECT_LE(connection.held(), memory.held() + 16 * 1024);
  }
  memory.Close();
  EXPECT_EQ(connection.held(), 0u);
}

TEST(LaneMemory, CountsBuffersByTheirLatestSizeUntilItIsClosed) {
  HeldMemory connection;
  LaneMemory memory(&connection, 1);
  memory.SetScratch(5000);
  memory.SetScratch(2000);
  EXPECT_EQ(memory.held(), 2000u);
  memory.Close();
  memory.SetScratch(5000);
  EXPECT_EQ(memory.held(), 0u);
  EXPECT_EQ(connection.held(), 0u);
}

TEST(LaneMemory, GuaranteesAnswersAndThenTakesOptionalMemory) {
  HeldMemory connection;
  connection.SetPool(std::make_shared<HeldMemoryPool>(1 << 20, 1 << 20));
  LaneMemory memory(&connection, 1);
  const std::uint64_t most = AskBudget(1);
  EXPECT_EQ(memory.ReserveAnswer(most, 0), AnswerMemory::kGuaranteed);
  memory.HoldAnswer(most, AnswerMemory::kGuaranteed);
  EXPECT_EQ(memory.ReserveAnswer(most, 0), AnswerMemory::kOptional);
  memory.HoldAnswer(most, AnswerMemory::kOptional);
  EXPECT_EQ(memory.held(), most);  // optional memory is counted by the connection only
  memory.ReleaseAnswer(most, AnswerMemory::kOptional);
  memory.ReleaseAnswer(most, AnswerMemory::kGuaranteed);
  EXPECT_EQ(memory.held(), 0u);
  EXPECT_EQ(memory.ReserveAnswer(most, 0), AnswerMemory::kGuaranteed);
}

TEST(LaneMemory, LetsRequestsWaitWhenThereIsNoRoomOrTooManyAnswers) {
  HeldMemory connection;
  connection.SetPool(std::make_shared<HeldMemoryPool>(1024, 1024));
  LaneMemory memory(&connection, 1);
  EXPECT_EQ(memory.ReserveAnswer(1, 4 * kMaxReplies), AnswerMemory::kNone);
  EXPECT_EQ(memory.ReserveAnswer(1 << 20, 0), AnswerMemory::kNone);
}

TEST(LaneMemory, KeepsASmallPartOfTheLimitUntilThePeerAcknowledges) {
  HeldMemory connection;
  connection.SetPool(std::make_shared<HeldMemoryPool>(1 << 20, 1 << 20));
  LaneMemory memory(&connection, 1);
  EXPECT_TRUE(memory.may_keep());
  memory.HoldKept(32 * 1024);
  EXPECT_FALSE(memory.may_keep());
  memory.ReleaseKept(1);
  EXPECT_TRUE(memory.may_keep());
}

TEST(LaneMemory, ChargesBuffersToTheConnectionAloneUntilItIsClosed) {
  const auto pool = std::make_shared<HeldMemoryPool>(1 << 20, 1 << 20);
  HeldMemory connection;
  connection.SetPool(pool);
  LaneMemory memory(&connection, 1);
  memory.SetBuffers(5000);
  EXPECT_EQ(connection.held(), 8192u);
  EXPECT_EQ(pool->held(), 0u);
  EXPECT_EQ(memory.held(), 0u);
  memory.SetBuffers(100);
  EXPECT_EQ(connection.held(), 4096u);
  memory.Close();
  memory.SetBuffers(5000);
  EXPECT_EQ(connection.held(), 0u);
}

}  // namespace
}  // namespace ferry::transfer
