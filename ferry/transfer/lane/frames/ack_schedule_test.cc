// Tests when the peer's frames are acknowledged.
#include <gtest/gtest.h>

#include "ferry/transfer/lane/frames/frame_sender.h"

namespace ferry::transfer {
namespace {

constexpr std::uint64_t kAckedSlice = 1 << 20;
using When = AckSchedule::When;

TEST(AckSchedule, DelaysTheAcknowledgementOfLittleUntilTheLoopIsIdle) {
  AckSchedule acks(100, 64 * kAckedSlice, kAckedSlice);
  EXPECT_FALSE(acks.due());
  EXPECT_EQ(acks.CountFinished(10), When::kWhenIdle);
  EXPECT_EQ(acks.CountFinished(10), When::kScheduled);
  EXPECT_TRUE(acks.due());
  acks.OnIdle();
  EXPECT_EQ(acks.Take(), 2u);
  EXPECT_FALSE(acks.due());
  EXPECT_EQ(acks.CountFinished(10), When::kWhenIdle);
}

TEST(AckSchedule, DoesNotDelayTheAcknowledgementOfMuch) {
  AckSchedule acks(100, 64 * kAckedSlice, kAckedSlice);
  EXPECT_EQ(acks.CountFinished(kAckedSlice), When::kWhenIdle);
  EXPECT_EQ(acks.CountFinished(kAckedSlice), When::kNow);
  EXPECT_EQ(acks.Take(), 2u);
}

TEST(AckSchedule, DoesNotDelayTheAcknowledgementOfMany) {
  AckSchedule acks(1000, 64 * kAckedSlice, kAckedSlice);
  int delayed = 0;
  while (acks.CountFinished(0) != When::kNow) ASSERT_LT(++delayed, 1000);
  EXPECT_EQ(acks.finished(), 64u);
}

TEST(AckSchedule, DoesNotAcknowledgeARefusedFrameBeforeTheRefusalIsSent) {
  AckSchedule acks(100, 64 * kAckedSlice, kAckedSlice);
  (void)acks.CountFinished(0);
  acks.refusals().Add(1, 7, /*said=*/false);
  (void)acks.CountFinished(0);
  (void)acks.CountFinished(0);
  EXPECT_EQ(acks.Take(), 1u);
  EXPECT_EQ(acks.refusals().UnsaidSpan(acks.finished()), 2u);
  const auto refusal = acks.refusals().NextUnsaid();
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->sequence, 1u);
  acks.refusals().SaidNext();
  EXPECT_FALSE(acks.refusals().has_unsaid());
  EXPECT_EQ(acks.Take(), 3u);
}

TEST(AckSchedule, LeavesAllRefusalsToTheReplacementOfALostLane) {
  AckSchedule acks(100, 64 * kAckedSlice, kAckedSlice);
  acks.refusals().Add(0, 7, /*said=*/false);
  (void)acks.CountFinished(0);
  acks.OnLaneDown();
  acks.CountSkipped();
  EXPECT_FALSE(acks.refusals().has_unsaid());
  const LaneProgress progress = acks.progress();
  EXPECT_EQ(progress.finished, 2u);
  ASSERT_EQ(progress.refused.size(), 1u);
  EXPECT_EQ(progress.refused[0].code, 7u);
}

}  // namespace
}  // namespace ferry::transfer
