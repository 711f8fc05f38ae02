// Tests where the peer's payloads go.
#include "ferry/transfer/lane/frames/frame_receiver.h"

#include <gtest/gtest.h>

#include <cstring>

#include "ferry/transfer/testing/lane_bed.h"

namespace ferry::transfer {
namespace {

using Action = net::Placement::Action;

constexpr std::uint64_t kTag = 77;

class FrameReceiverTest : public ::testing::Test {
 protected:
  using State = FrameReceiver::State;

  FrameReceiverTest() : bytes_(4000) {
    frames_.SetLane(&lane_);
    receiver_.SetLane(&lane_);
    region_ = Must(bed_.regions.Add(bytes_, Rights::kWrite));
  }

  template <class Body>
  Result<net::Placement> Receive(wire::Type type, const Body& body, std::uint64_t payload_bytes) {
    wire::MessageHeader header;
    header.type = type;
    header.operation = 6;
    header.flags = crc_ ? wire::kChecked : 0;
    header.crc = crc_.value_or(0);
    wire::MetaReader reader(body);
    return receiver_.OnFrame(header, &reader, payload_bytes);
  }
  Result<net::Placement> Write(std::uint64_t offset, std::uint64_t length) {
    std::vector<std::byte> body;
    wire::Append(&body, wire::WriteBody{{region_->id, region_->generation, region_->token}, 0, 1});
    wire::Append(&body, wire::BlockOnWire{offset, length});
    return Receive(wire::Type::kWrite, body, length);
  }
  Result<net::Placement> Message(std::string_view text) {
    std::vector<std::byte> body;
    wire::Append(&body, wire::TagBody{kTag, text.size()});
    auto placed = Receive(wire::Type::kSend, body, text.size());
    if (placed && placed->action == Action::kPlace && !text.empty()) {
      std::memcpy(placed->memory[0].iov_base, text.data(), text.size());
    }
    return placed;
  }
  std::uint32_t finished() { return frames_.acks().finished(); }

  LaneBed bed_;
  ScriptedLane lane_;
  std::vector<std::byte> bytes_;
  std::shared_ptr<RegionState> region_;  // shared with the table
  std::optional<std::uint32_t> crc_;     // of the payload, if frames carry checksums
  FrameSender frames_{bed_.site};
  ReadRequests reads_;
  LaneStaging staging_{&bed_.owner, bed_.loop.get(), {[] {}, [] { return false; }}};
  FrameReceiver receiver_{bed_.site, &frames_, &reads_, &staging_};
};

TEST_F(FrameReceiverTest, PlacesAWriteInTheRegionAndCountsItWhenItIsThere) {
  const auto placed = Write(100, 200);
  ASSERT_TRUE(placed);
  EXPECT_EQ(placed->action, Action::kPlace);
  EXPECT_TRUE(placed->revocable);
  EXPECT_EQ(placed->memory[0].iov_base, bytes_.data() + 100);
  EXPECT_EQ(receiver_.state(), State::kPlacing);
  EXPECT_EQ(region_->gate.inside(), 1u);
  EXPECT_EQ(finished(), 0u);
  EXPECT_FALSE(receiver_.OnPayload());
  EXPECT_EQ(receiver_.state(), State::kIdle);
  EXPECT_EQ(region_->gate.inside(), 0u);
  EXPECT_EQ(finished(), 1u);
}

TEST_F(FrameReceiverTest, RefusesAWriteOutsideTheRegionAndDropsItsPayload) {
  const auto placed = Write(3999, 2);
  ASSERT_TRUE(placed);
  EXPECT_EQ(placed->action, Action::kDiscard);
  EXPECT_EQ(receiver_.state(), State::kDiscarding);
  EXPECT_EQ(lane_.Types(), std::vector{wire::Type::kNack});
  EXPECT_EQ(finished(), 0u);  // the peer may have sent its pages zero-copy
  (void)receiver_.OnPayload();
  EXPECT_EQ(finished(), 1u);
}

TEST_F(FrameReceiverTest, StopsInTheMiddleOfAWriteWhenTheRegionIsDeregistered) {
  ASSERT_TRUE(Write(0, 100));
  const RegionState other;
  receiver_.Revoke(&other);
  EXPECT_EQ(receiver_.state(), State::kPlacing);
  receiver_.Revoke(region_.get());
  EXPECT_EQ(receiver_.state(), State::kDiscarding);
  EXPECT_EQ(lane_.discarded, 1);
  EXPECT_EQ(region_->gate.inside(), 0u);
  EXPECT_EQ(lane_.Types(), std::vector{wire::Type::kNack});
}

TEST_F(FrameReceiverTest, ReportsAPayloadThatWasCorruptedOnItsWay) {
  crc_ = 12345;
  ASSERT_TRUE(Write(0, 100));
  (void)receiver_.OnPayload();
  EXPECT_EQ(bed_.owner.events, std::vector<std::string>{"mismatch"});
  EXPECT_EQ(lane_.Types(), std::vector{wire::Type::kNack});
  EXPECT_EQ(finished(), 1u);
}

TEST_F(FrameReceiverTest, AReadEndsWhenItsDataIsInPlace) {
  const SlicedMemory memory(1, Direction::kRead);
  ASSERT_TRUE(memory.operation->ledger.Pull());
  reads_.Add({memory.operation, 6, 0, 1000, 0});
  std::vector<std::byte> body;
  wire::Append(&body, wire::SliceBody{0, 0});
  const auto placed = Receive(wire::Type::kReadData, body, 1000);
  ASSERT_TRUE(placed);
  EXPECT_EQ(placed->memory[0].iov_base, memory.memory.data());
  const auto end = receiver_.OnPayload();
  ASSERT_TRUE(end);
  EXPECT_EQ(end->operation, memory.operation);
  EXPECT_FALSE(end->error);
  EXPECT_FALSE(Receive(wire::Type::kReadData, body, 1000));  // was not requested
}

TEST_F(FrameReceiverTest, DropsDataOfAReadThatWasAbandoned) {
  const SlicedMemory memory(2, Direction::kRead);
  std::vector<std::byte> body;
  wire::Append(&body, wire::SliceBody{0, 0});
  reads_.Add({memory.operation, 6, 0, 1000, 0});
  ASSERT_TRUE(Receive(wire::Type::kReadData, body, 1000));
  EXPECT_TRUE(receiver_.DropRead(memory.operation.get()));
  EXPECT_EQ(receiver_.state(), State::kDiscarding);
  (void)reads_.TakeOldest();
  EXPECT_FALSE(receiver_.OnPayload());
  reads_.Add({nullptr, 6, 0, 1000, 0});
  EXPECT_EQ(Receive(wire::Type::kReadData, body, 1000)->action, Action::kDiscard);
  EXPECT_EQ(reads_.size(), 0u);
}

TEST_F(FrameReceiverTest, KeepsAMessageWithoutAReceive) {
  ASSERT_TRUE(Message("hello"));
  (void)receiver_.OnPayload();
  ASSERT_TRUE(Message(""));  // complete at once
  EXPECT_EQ(finished(), 2u);
  bed_.config.unexpected_bytes = 5;
  EXPECT_EQ(Message("more")->action, Action::kDiscard);
  EXPECT_TRUE(bed_.owner.refusals.empty());

  std::vector<std::byte> buffer(10);
  const OperationRef first = bed_.Receive(kTag, buffer);
  EXPECT_EQ(std::memcmp(buffer.data(), "hello", 5), 0);
  EXPECT_EQ(first->outcome.bytes, 5u);
  EXPECT_TRUE(first->done);
  EXPECT_TRUE(bed_.Receive(kTag, buffer)->done);
  EXPECT_FALSE(bed_.Receive(kTag, buffer)->done);  // the third waits at the peer
  ASSERT_FALSE(bed_.operations.sent.empty());
  EXPECT_EQ(bed_.operations.sent.back().type, wire::Type::kCts);
}

TEST_F(FrameReceiverTest, AMessageThatWasCutOffGivesItsReceiveBack) {
  std::vector<std::byte> buffer(10);
  const OperationRef receive = bed_.Receive(kTag, buffer);
  ASSERT_TRUE(Message("hello"));
  EXPECT_EQ(std::memcmp(buffer.data(), "hello", 5), 0);
  EXPECT_EQ(receive->phase(), OperationState::Phase::kReceiving);
  receiver_.SetLane(nullptr);
  EXPECT_EQ(receive->phase(), OperationState::Phase::kPosted);
  EXPECT_EQ(receiver_.state(), State::kIdle);
  EXPECT_EQ(finished(), 0u);  // it is sent again
}

TEST_F(FrameReceiverTest, ACancelledReceiveIsNoLongerWritten) {
  std::vector<std::byte> buffer(10);
  const OperationRef receive = bed_.Receive(kTag, buffer);
  ASSERT_TRUE(Message("hello"));
  const auto held = receive.use_count();
  receiver_.DropMessage(receive.get());
  EXPECT_EQ(lane_.discarded, 1);
  EXPECT_EQ(receive.use_count(), held - 1);
  (void)receiver_.OnPayload();
  EXPECT_FALSE(receive->done);
}

TEST_F(FrameReceiverTest, ARefusedFrameCountsThoughItsLaneIsLost) {
  ASSERT_TRUE(Write(3999, 2));
  receiver_.SetLane(nullptr);
  EXPECT_EQ(finished(), 1u);
}

TEST_F(FrameReceiverTest, ResumesForWhatItWaitsForOnly) {
  (void)receiver_.Pause(FrameReceiver::Wait::kPeer);
  EXPECT_FALSE(receiver_.Resume(FrameReceiver::Wait::kSlot));
  EXPECT_EQ(lane_.resumed, 0);
  EXPECT_TRUE(receiver_.Resume(FrameReceiver::Wait::kPeer));
  EXPECT_FALSE(receiver_.Resume(FrameReceiver::Wait::kPeer));
  EXPECT_EQ(lane_.resumed, 1);
}

}  // namespace
}  // namespace ferry::transfer
