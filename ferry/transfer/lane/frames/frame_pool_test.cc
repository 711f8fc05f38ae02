// Tests the pool of frames.
#include <gtest/gtest.h>

#include <vector>

#include "ferry/transfer/lane/frames/frame_sender.h"
#include "ferry/transfer/lane/lane_site.h"

namespace ferry::transfer {
namespace {

class FramePoolTest : public ::testing::Test {
 protected:
  LaneFrame* New() { return pool_.New(wire::Type::kWrite, 9, /*checked=*/false); }

  HeldMemory connection_;
  LaneMemory memory_{&connection_, 1};
  FramePool pool_{&memory_};
};

TEST_F(FramePoolTest, ReusesFramesAndForgetsWhatTheyWere) {
  LaneFrame* const frame = New();
  EXPECT_EQ(OperationIn(*frame), 9u);
  frame->payload_bytes = 5;
  frame->sequenced = frame->plain = frame->may_splice = true;
  frame->unsent = 7;
  pool_.Recycle(frame);
  pool_.Recycle(frame);  // no effect
  LaneFrame* const again = New();
  EXPECT_EQ(again, frame);
  EXPECT_EQ(again->payload_bytes, 0u);
  EXPECT_FALSE(again->sequenced || again->plain || again->may_splice);
  EXPECT_EQ(again->unsent, 0u);
  EXPECT_NE(New(), again);
}

TEST_F(FramePoolTest, ReturnsTheMemoryOfAFrameOnce) {
  LaneFrame* const plain = New();
  pool_.HoldPlain(plain, 100);
  LaneFrame* const answer = New();
  pool_.HoldAnswer(answer, 200, AnswerMemory::kGuaranteed);
  LaneFrame* const kept = New();
  pool_.Keep(kept);
  pool_.HoldKept(kept, 400);
  EXPECT_EQ(memory_.held(), 700u);
  EXPECT_EQ(pool_.kept(), 1u);
  pool_.RecycleUnkept();
  EXPECT_EQ(memory_.held(), 400u);
  pool_.Recycle(kept);
  pool_.Recycle(kept);
  EXPECT_EQ(memory_.held(), 0u);
  EXPECT_EQ(pool_.kept(), 0u);
}

TEST_F(FramePoolTest, FreesTheFramesOfABurstStepByStep) {
  std::vector<LaneFrame*> burst;
  for (int i = 0; i < 1000; ++i) burst.push_back(New());
  for (LaneFrame* const frame : burst) pool_.Recycle(frame);
  EXPECT_EQ(pool_.unused(), 256u);
  pool_.Trim();
  EXPECT_EQ(pool_.unused(), 128u);
  for (int i = 0; i < 10; ++i) pool_.Trim();
  EXPECT_EQ(pool_.unused(), 16u);
  EXPECT_EQ(pool_.all().size(), 16u);
}

TEST_F(FramePoolTest, KeepsFewUnusedFramesWithLongLists) {
  std::vector<LaneFrame*> burst;
  for (int i = 0; i < 100; ++i) {
    burst.push_back(New());
    burst.back()->payload.reserve(kSmallList);
  }
  EXPECT_EQ(pool_.spare_bytes(), 0u);
  for (LaneFrame* const frame : burst) pool_.Recycle(frame);
  EXPECT_LE(pool_.spare_bytes(), kMaxFreeBytes);
  EXPECT_GT(pool_.spare_bytes(), kMaxFreeBytes / 2);
  EXPECT_EQ(pool_.all().size(), pool_.unused());
  const std::size_t most = pool_.spare_bytes();
  (void)New();
  EXPECT_EQ(pool_.spare_bytes(), most);
  pool_.Trim();
  EXPECT_LT(pool_.spare_bytes(), most);
}

TEST_F(FramePoolTest, ReturnsOptionalMemoryWhenItIsCleared) {
  ASSERT_TRUE(connection_.TryAdd(300));
  pool_.HoldAnswer(New(), 300, AnswerMemory::kOptional);
  pool_.Clear();
  EXPECT_EQ(connection_.held(), 0u);
  EXPECT_TRUE(pool_.all().empty());
}

}  // namespace
}  // namespace ferry::transfer
