// Tests headers, acknowledgements and refusals.
#include "ferry/transfer/lane/frames/frame_sender.h"

#include <gtest/gtest.h>

#include "ferry/transfer/lane/lane_site.h"
#include "ferry/transfer/testing/lane_bed.h"

namespace ferry::transfer {
namespace {

class FrameSenderTest : public ::testing::Test {
 protected:
  FrameSenderTest() { frames_.SetLane(&lane_); }

  // The first queued frame leaves.
  void SendOne() {
    LaneFrame* const frame = lane_.TakeSent();
    const wire::Type type = frame->type;
    frames_.pool().Recycle(frame);
    frames_.OnPlainSent(type);
  }

  LaneBed bed_;
  ScriptedLane lane_;
  FrameSender frames_{bed_.site};
};

TEST_F(FrameSenderTest, AcknowledgesWithWhateverItSends) {
  frames_.CountFinished(10);
  frames_.CountFinished(10);
  frames_.SendPlain(wire::Type::kPing, 0, {});
  EXPECT_EQ(lane_.Types(), std::vector{wire::Type::kPing});
  EXPECT_EQ(lane_.Header(0).ack, 2u);
  frames_.SendAck();  // nothing is due
  EXPECT_EQ(lane_.queue.size(), 1u);
}

TEST_F(FrameSenderTest, AcknowledgesWhenTheLoopIsIdle) {
  frames_.CountFinished(10);
  EXPECT_TRUE(lane_.queue.empty());
  for (int i = 0; i < 100 && lane_.queue.empty(); ++i) bed_.loop->DriveOnce();
  EXPECT_EQ(lane_.Types(), std::vector{wire::Type::kAck});
}

TEST_F(FrameSenderTest, SendsNothingWithoutALaneAndCountsOn) {
  frames_.SetLane(nullptr);
  EXPECT_FALSE(frames_.up());
  frames_.SendPlain(wire::Type::kPing, 0, {});
  frames_.CountFinished(1 << 20);
  frames_.Refuse(1, 5, Error(Code::kRefused, "no"));
  EXPECT_TRUE(lane_.queue.empty());
  EXPECT_EQ(frames_.acks().progress().finished, 1u);
  EXPECT_EQ(frames_.acks().progress().refused.size(), 1u);
}

TEST_F(FrameSenderTest, SealsFramesThatCarryChecksums) {
  LaneFrame* const frame = frames_.New(wire::Type::kNotify, 3);
  char text[] = "123456789";
  frame->payload.push_back({text, 9});
  frame->payload_bytes = 9;
  frame->checked = true;
  FrameSender::Seal(frame);
  frames_.Send(frame);
  const wire::MessageHeader header = lane_.Header(0);
  EXPECT_EQ(header.crc, 0xE3069283u);
  EXPECT_EQ(header.meta_crc, MetadataCrc(frame->meta, header));
}

TEST_F(FrameSenderTest, SendsManyRefusalsBitByBitAndAcknowledgesNoneEarly) {
  const std::uint32_t many = 3 * kMaxNacks;
  for (std::uint32_t i = 0; i < many; ++i) {
    frames_.Refuse(i, i, Error(Code::kRefused, "no"));
    frames_.CountFinished(0);
  }
  EXPECT_EQ(bed_.owner.refusals.size(), many);
  EXPECT_EQ(lane_.queue.size(), kMaxNacks);
  std::uint32_t refusals = 0;
  while (!lane_.queue.empty()) {
    const wire::MessageHeader header = lane_.Header(0);
    if (header.type == wire::Type::kNack) ++refusals;
    EXPECT_LE(header.ack, refusals);
    SendOne();
  }
  EXPECT_EQ(refusals, many);
  EXPECT_FALSE(frames_.acks().due());
}

TEST_F(FrameSenderTest, ReturnsAllMemoryWhenItIsClosed) {
  frames_.SendPlain(wire::Type::kPing, 0, {});
  (void)frames_.NewReadRefusal(1, 2, Error(Code::kRefused, "no"));
  EXPECT_GT(bed_.memory.held(), 0u);
  frames_.SetLane(nullptr);
  frames_.Close();
  EXPECT_EQ(bed_.memory.held(), 0u);
}

}  // namespace
}  // namespace ferry::transfer
