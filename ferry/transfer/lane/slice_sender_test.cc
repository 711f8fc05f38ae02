// Tests what a lane sends, and what becomes of it.
#include "ferry/transfer/lane/slice_sender.h"

#include <gtest/gtest.h>

#include "ferry/transfer/testing/lane_bed.h"

namespace ferry::transfer {
namespace {

class SliceSenderTest : public ::testing::Test {
 protected:
  SliceSenderTest() { frames_.SetLane(&lane_); }

  // The network takes the first frame.
  void SendOne() {
    LaneFrame* const frame = lane_.TakeSent();
    const bool kept = frame->kept;
    sender_.OnSent(frame);
    if (!kept) frames_.pool().Recycle(frame);
    sender_.Pump();
  }
  Status Nack(std::uint32_t sequence, Code code) {
    wire::RefuseBody body;
    body.sequence = sequence;
    body.code = static_cast<std::uint8_t>(code);
    std::vector<std::byte> bytes;
    wire::Append(&bytes, body);
    wire::MetaReader reader(bytes);
    return sender_.OnNack(&reader);
  }
  OperationRef SendMessage() {
    auto operation = std::make_shared<OperationState>();
    operation->kind = OperationKind::kSend;
    operation->Enter(OperationState::Phase::kMessage);
    operation->ledger.BeginPulled();
    sender_.SendSequenced(wire::Type::kSend, 5, {}, std::as_bytes(std::span(text_)), operation);
    return operation;
  }
  void LoseLane() {
    frames_.SetLane(nullptr);
    sender_.OnLaneDown();
  }

  LaneBed bed_;
  ScriptedLane lane_;
  ScriptedLane replacement_;
  FrameSender frames_{bed_.site};
  LaneStaging staging_{&bed_.owner, bed_.loop.get(), {[] {}, [] { return false; }}};
  SliceSender sender_{bed_.site, &frames_, &staging_};
  char text_[5] = "text";
};

TEST_F(SliceSenderTest, KeepsTwoSlicesQueuedAndEndsTheRoundWithTheLastAcknowledgement) {
  const SlicedMemory memory(5);
  sender_.AddWork(memory.operation);
  EXPECT_EQ(lane_.queue.size(), 2u);
  std::uint32_t sent = 0;
  while (!lane_.queue.empty()) {
    SendOne();
    ASSERT_TRUE(sender_.OnAck(++sent));
  }
  EXPECT_EQ(sent, 5u);
  EXPECT_EQ(bed_.operations.done, std::vector{memory.operation});
  EXPECT_FALSE(memory.operation->ledger.error());
  EXPECT_FALSE(sender_.OnAck(6));  // was never sent
}

TEST_F(SliceSenderTest, ARefusedSliceFailsItsOperationWhenItIsSettled) {
  const SlicedMemory memory(1);
  sender_.AddWork(memory.operation);
  ASSERT_TRUE(Nack(0, Code::kRefused));
  ASSERT_TRUE(sender_.OnAck(1));
  EXPECT_TRUE(bed_.operations.done.empty());  // the frame is still in the lane
  SendOne();
  EXPECT_EQ(bed_.operations.done, std::vector{memory.operation});
  ASSERT_TRUE(memory.operation->ledger.error());
  EXPECT_EQ(memory.operation->ledger.error()->code(), Code::kRefused);
  EXPECT_FALSE(Nack(7, Code::kRefused));  // was never sent
}

TEST_F(SliceSenderTest, AMessageWithoutRoomWaitsLikeAnRts) {
  const OperationRef operation = SendMessage();
  SendOne();
  ASSERT_TRUE(Nack(0, Code::kUnavailable));
  ASSERT_TRUE(sender_.OnAck(1));
  EXPECT_EQ(operation->phase(), OperationState::Phase::kRtsSent);
  EXPECT_TRUE(bed_.operations.done.empty());
}

TEST_F(SliceSenderTest, AReadEndsWithItsDataOrItsRefusal) {
  const SlicedMemory memory(2, Direction::kRead);
  sender_.AddWork(memory.operation);
  EXPECT_EQ(lane_.Types(), (std::vector{wire::Type::kReadRequest, wire::Type::kReadRequest}));
  ReadSlice first = sender_.reads().TakeOldest();
  sender_.OnReadEnd({std::move(first.operation), first.bytes, std::nullopt});
  EXPECT_TRUE(bed_.operations.done.empty());
  wire::MessageHeader header;
  header.operation = memory.operation->id;
  wire::RefuseBody body;
  body.slice = 1;
  body.code = static_cast<std::uint8_t>(Code::kRefused);
  std::vector<std::byte> bytes;
  wire::Append(&bytes, body);
  wire::MetaReader reader(bytes);
  ASSERT_TRUE(sender_.OnReadRefused(header, &reader));
  EXPECT_EQ(bed_.operations.done.size(), 1u);
  EXPECT_TRUE(memory.operation->ledger.error());
  wire::MetaReader again(bytes);
  EXPECT_FALSE(sender_.OnReadRefused(header, &again));  // nothing is requested any more
}

TEST_F(SliceSenderTest, ALostLaneReturnsSlicesAndResendsMessagesInOrder) {
  const SlicedMemory memory(2);
  const OperationRef first = SendMessage();
  sender_.AddWork(memory.operation);
  const OperationRef second = SendMessage();
  ASSERT_EQ(lane_.queue.size(), 4u);
  LoseLane();
  EXPECT_TRUE(bed_.operations.dealt.empty());  // the peer's progress decides
  // The peer has the first message and the first slice, which it has refused.
  const auto code = static_cast<std::uint32_t>(Code::kUnsupported);
  ASSERT_TRUE(sender_.Settle({2, {{1, code}}}));
  EXPECT_EQ(bed_.operations.done, std::vector{first});
  ASSERT_TRUE(memory.operation->ledger.error());
  EXPECT_EQ(memory.operation->ledger.error()->code(), Code::kUnsupported);
  frames_.SetLane(&replacement_);
  sender_.SendAgain();
  EXPECT_EQ(replacement_.Types(), std::vector{wire::Type::kSend});
  EXPECT_EQ(bed_.operations.done, (std::vector{first, memory.operation}));
  EXPECT_TRUE(sender_.window().HoldsOperation(second.get()));
  EXPECT_EQ(sender_.window().first(), 2u);
  EXPECT_FALSE(sender_.Settle({9, {}}));  // more than was sent
}

TEST_F(SliceSenderTest, UnfinishedSlicesMayBePulledAgain) {
  const SlicedMemory memory(3);
  sender_.AddWork(memory.operation);
  LoseLane();
  ASSERT_TRUE(sender_.Settle({0, {}}));
  sender_.SendAgain();
  EXPECT_EQ(bed_.operations.dealt, std::vector{memory.operation});
  EXPECT_EQ(memory.operation->ledger.left(), 3u);
  EXPECT_EQ(bed_.counts.retries.get(), 2u);
}

TEST_F(SliceSenderTest, ClosingFailsEverythingInFlight) {
  const SlicedMemory write(1);
  const SlicedMemory read(1, Direction::kRead);
  sender_.AddWork(write.operation);
  sender_.AddWork(read.operation);
  sender_.Stop();
  EXPECT_TRUE(sender_.Close(Error(Code::kPeerLost, "gone")).empty());
  EXPECT_EQ(bed_.operations.done.size(), 2u);
  for (const OperationRef& operation : bed_.operations.done) {
    EXPECT_EQ(operation->ledger.error()->code(), Code::kPeerLost);
  }
  EXPECT_FALSE(sender_.window().HoldsWork() || sender_.reads().HoldsWork());
}

}  // namespace
}  // namespace ferry::transfer
