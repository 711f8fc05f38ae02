// Tests the states of a lane, and where it sends what arrives. The test plays the network.
#include "ferry/transfer/lane/lane_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ferry/transfer/handshake/parked_lane.h"
#include "ferry/transfer/testing/lane_bed.h"

namespace ferry::transfer {
namespace {

using Action = net::Placement::Action;
using wire::Type;

const Error& Loss() {
  static const Error error(Code::kPeerLost, "the network failed");
  return error;
}

class LaneEngineTest : public ::testing::Test {
 protected:
  using State = LaneEngine::State;

  LaneEngineTest() { engine_.Adopt(NewLane()); }

  std::unique_ptr<net::Lane> NewLane() {
    auto lane = std::make_unique<ScriptedLane>();
    lane_ = lane.get();
    return lane;
  }
  template <class Body>
  Result<net::Placement> Receive(Type type, const Body& body, std::uint32_t ack = 0,
                                 std::uint64_t payload_bytes = 0) {
    return lane_->handler().OnFrame(MetaOf(type, 1, body, ack), payload_bytes);
  }
  Result<net::Placement> Receive(Type type) { return Receive(type, wire::JoinBody{}); }
  void SendAll() {
    while (!lane_->queue.empty()) lane_->handler().OnSent(lane_->TakeSent());
  }
  void Revive(std::uint32_t attempt, const LaneProgress& peer) {
    auto lane = NewLane();
    engine_.Revive(attempt, std::make_unique<ParkedLane>(std::move(lane), bed_.loop.get()), peer);
  }
  bool Told(const std::string& event) const {
    const auto& events = bed_.owner.events;
    return std::find(events.begin(), events.end(), event) != events.end();
  }

  LaneBed bed_;
  ScriptedLane* lane_ = nullptr;  // the latest; owned by the engine
  LaneEngine engine_{bed_.context, bed_.loop.get(), 0};
};

TEST_F(LaneEngineTest, IsUpOnceItHasALane) {
  const LaneEngine other(bed_.context, bed_.loop.get(), 1);
  EXPECT_EQ(other.state(), State::kConnecting);
  EXPECT_EQ(engine_.state(), State::kUp);
}

TEST_F(LaneEngineTest, AnswersPingsAndHandsMessagesOn) {
  ASSERT_TRUE(Receive(Type::kPing));
  EXPECT_EQ(lane_->Types(), std::vector{Type::kPong});
  ASSERT_TRUE(Receive(Type::kRts, wire::TagBody{.tag = 7, .bytes = 4}));
  std::vector<std::byte> buffer(4);
  EXPECT_FALSE(bed_.Receive(7, buffer)->done);
  ASSERT_EQ(bed_.operations.sent.size(), 1U);
  EXPECT_EQ(bed_.operations.sent[0].type, Type::kCts);
  ASSERT_TRUE(Receive(Type::kLaneLost, wire::JoinBody{.lane = 3}));
  EXPECT_TRUE(Told("gave up 3"));
  EXPECT_EQ(engine_.Traffic().frames_received, 3u);
}

TEST_F(LaneEngineTest, SaysWhatThePeerHasNotAcknowledged) {
  const auto operation = std::make_shared<OperationState>();
  operation->ledger.BeginPulled();
  const std::byte message[10] = {};
  EXPECT_EQ(engine_.Waits(operation.get()), "");
  engine_.SendSequenced(Type::kSend, 1, {}, message, operation);
  engine_.SendSequenced(Type::kSend, 2, {}, message, nullptr);
  EXPECT_EQ(engine_.Waits(operation.get()),
            "waiting for the peer to acknowledge 20 bytes, in 2 frames");
  const auto other = std::make_shared<OperationState>();
  EXPECT_EQ(engine_.Waits(other.get()), "");
  for (net::OutFrame* frame : lane_->queue) frame->payload_number = 3;
  SendAll();
  EXPECT_THAT(engine_.Waits(operation.get()),
              ::testing::ContainsRegex("^waiting for the peer to acknowledge payload 3 of 10: all "
                                       "of it left [0-9.]+ s ago$"));
  ASSERT_TRUE(Receive(Type::kPing, wire::JoinBody{}, /*ack=*/1));
  EXPECT_EQ(engine_.Waits(operation.get()), "");
}

TEST_F(LaneEngineTest, FramesThatNoPeerSendsEndTheConnection) {
  EXPECT_FALSE(lane_->handler().OnFrame({}, 0));
  EXPECT_FALSE(Receive(Type::kHello));
  EXPECT_FALSE(Receive(Type::kPing, wire::JoinBody{}, 0, /*payload_bytes=*/5));
  EXPECT_FALSE(Receive(Type::kPing, wire::JoinBody{}, /*ack=*/1));
}

TEST_F(LaneEngineTest, AFrozenLaneReceivesNothingAndGoesOnOverItsReplacement) {
  ASSERT_TRUE(Receive(Type::kRts, wire::TagBody{.tag = 7, .bytes = 4}));
  engine_.SendSequenced(Type::kRts, 1, {}, {}, nullptr);
  SendAll();
  const auto progress = engine_.Freeze(1);
  ASSERT_TRUE(progress);
  EXPECT_EQ(progress->finished, 1u);
  EXPECT_EQ(engine_.state(), State::kFrozen);
  EXPECT_EQ(Receive(Type::kPing)->action, Action::kPause);
  engine_.SendSequenced(Type::kCts, 2, {}, {}, nullptr);  // waits for the replacement
  EXPECT_TRUE(lane_->queue.empty());
  Revive(1, {1, {}});  // the peer has the first
  EXPECT_EQ(engine_.state(), State::kUp);
  EXPECT_TRUE(Told("up"));
  EXPECT_EQ(lane_->Types(), (std::vector{Type::kCts, Type::kPing}));
}

TEST_F(LaneEngineTest, OnlyTheLatestAttemptReplacesTheLane) {
  ASSERT_TRUE(engine_.Freeze(2));
  EXPECT_FALSE(engine_.Freeze(1));
  EXPECT_FALSE(engine_.Freeze(2));
  Revive(1, {});
  EXPECT_EQ(engine_.state(), State::kFrozen);
}

TEST_F(LaneEngineTest, APeerThatClaimsMoreThanWasSentEndsTheConnection) {
  ASSERT_TRUE(engine_.Freeze(1));
  auto* const old = lane_;
  Revive(1, {7, {}});
  EXPECT_EQ(engine_.state(), State::kClosed);
  EXPECT_TRUE(old->closed || old->aborted);
  EXPECT_TRUE(Told("closed"));
}

TEST_F(LaneEngineTest, ALaneThatTheNetworkDropsWaitsForAReplacement) {
  lane_->bytes_received = 100;
  lane_->handler().OnClosed(net::LaneLoss::kUnreachable, Loss());
  EXPECT_EQ(engine_.state(), State::kFrozen);
  EXPECT_TRUE(Told("lost"));
  EXPECT_TRUE(lane_->aborted);
  ASSERT_TRUE(engine_.Freeze(1));
  Revive(1, {});
  lane_->bytes_received = 11;
  EXPECT_EQ(engine_.BytesReceived(), 111u);
  // The peer has given up the attempt before it used the lane.
  lane_->handler().OnClosed(net::LaneLoss::kPeerClosed, Loss());
  EXPECT_EQ(engine_.state(), State::kFrozen);
  EXPECT_TRUE(Told("given up"));
}

TEST_F(LaneEngineTest, ALaneThatThePeerClosesIsNotReplaced) {
  lane_->handler().OnClosed(net::LaneLoss::kPeerClosed, Loss());
  EXPECT_EQ(engine_.state(), State::kClosed);
  EXPECT_EQ(bed_.owner.events, (std::vector<std::string>{"peer closed", "closed"}));
}

TEST_F(LaneEngineTest, ClosingResetsALaneWhoseDataIsInFlight) {
  const SlicedMemory memory(1);
  engine_.AddWork(memory.operation);
  engine_.Close(Loss());
  EXPECT_TRUE(lane_->aborted);
  EXPECT_EQ(memory.operation->ledger.error()->code(), Code::kPeerLost);
  EXPECT_EQ(bed_.operations.done.size(), 1u);
  EXPECT_EQ(bed_.memory.held(), 0u);
}

TEST_F(LaneEngineTest, ClosingByOwnWishAcknowledgesFirst) {
  ASSERT_TRUE(Receive(Type::kRts, wire::TagBody{.tag = 7, .bytes = 4}));
  engine_.Close(Error(Code::kCancelled, "this side closes"));
  EXPECT_TRUE(lane_->closed);
  EXPECT_FALSE(lane_->aborted);
  ASSERT_FALSE(lane_->queue.empty());
  EXPECT_TRUE(Told("closed"));
}

TEST_F(LaneEngineTest, WhatComesAfterTheEndFailsAtOnce) {
  engine_.Close(Loss());
  engine_.Close(Error(Code::kCancelled, "again"));
  EXPECT_EQ(engine_.closed_by()->code(), Code::kPeerLost);
  const auto operation = std::make_shared<OperationState>();
  operation->ledger.BeginPulled();
  engine_.SendSequenced(Type::kSend, 1, {}, {}, operation);
  EXPECT_EQ(operation->ledger.error()->code(), Code::kPeerLost);
  EXPECT_EQ(bed_.operations.done, std::vector{operation});
  EXPECT_FALSE(engine_.Freeze(1));
  engine_.Free();
  EXPECT_EQ(std::count(bed_.owner.events.begin(), bed_.owner.events.end(), "closed"), 1);
}

TEST_F(LaneEngineTest, AnAbandonedReadIsResolvedThoughItsDataWasArriving) {
  const SlicedMemory memory(2, Direction::kRead);
  engine_.AddWork(memory.operation);
  ASSERT_EQ(lane_->queue.size(), 2u);
  ASSERT_FALSE(memory.operation->ledger.Stop(Error(Code::kCancelled, "")));
  const std::uint64_t id = memory.operation->id;
  ASSERT_TRUE(lane_->handler().OnFrame(MetaOf(Type::kReadData, id, wire::SliceBody{0, 0}), 1000));
  engine_.AbandonReads(memory.operation);
  EXPECT_EQ(lane_->discarded, 1);
  EXPECT_EQ(bed_.operations.done, std::vector{memory.operation});
  EXPECT_FALSE(engine_.HoldsWork());
  ASSERT_TRUE(lane_->handler().OnPayload());
  const auto dropped =
      lane_->handler().OnFrame(MetaOf(Type::kReadData, id, wire::SliceBody{1, 0}), 1000);
  ASSERT_TRUE(dropped);
  EXPECT_EQ(dropped->action, Action::kDiscard);
}

}  // namespace
}  // namespace ferry::transfer
