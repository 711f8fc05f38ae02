// Tests staging slots that stalled peers hold, and requests that wait for a slot.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "ferry/cuda/open_devices.h"
#include "ferry/cuda/simulated/devices.h"
#include "ferry/transfer/testing/device_mirror.h"
#include "ferry/transfer/testing/linked_endpoints.h"
#include "ferry/transfer/testing/raw_peer.h"

// Slots held by stalled peers, and operations that wait for a slot meanwhile.
namespace ferry::transfer {
namespace {

using wire::Type;

constexpr std::size_t kSlot = 64 * 1024;  // large enough for zero-copy
constexpr std::size_t kSlots = 8;         // per direction
constexpr std::size_t kLaneSlots = 4;     // limit of a lane when half of them are taken

Config FewSlots() {
  Config config = SmallSlices(/*lanes=*/1, /*workers=*/1);
  config.devices = DeviceChoice::Simulated("1:4711");
  config.cuda_ipc = AutoOff::kOff;
  config.slice_bytes = kSlot;
  config.window_bytes = 16 * kSlot;
  config.stage_slice_bytes = kSlot;
  config.stage_bytes = kSlot;  // 8 slots are the minimum
  config.zero_copy_send = AutoOnOff::kOn;
  return config;
}

class DeviceSlotsTest : public ::testing::Test {
 protected:
  static Saying Access(Type type, const wire::KeyBody& key, std::uint64_t length,
                       std::uint32_t slice = 0) {
    Saying saying{.type = type, .operation = 77, .body = Pod(wire::WriteBody{key, slice, 1})};
    wire::Append(&saying.body, wire::BlockOnWire{0, length});
    if (type == Type::kWrite) saying.payload.resize(length);
    return saying;
  }
  RawPeer& NewPeer() {
    // Proved, so that slots are spliced to it.
    RawPeer& peer = peers_.emplace_back(far_.port(), 1, 64 * 1024, /*proved=*/true);
    accepted_.push_back(Must(far_.Accept(Soon())));
    return peer;
  }
  // Peers that have received the data they requested, but do not acknowledge it.
  void HoldSlotsToSend() {
    for (std::size_t held = 0; held < kSlots; held += kLaneSlots) {
      RawLane& lane = NewPeer().lane();
      for (std::uint32_t i = 0; i < kLaneSlots; ++i) {
        ASSERT_TRUE(lane.Say(Access(Type::kReadRequest, Key(), kSlot, i)));
        EXPECT_EQ(lane.Expect(Type::kReadData).payload.size(), kSlot);
      }
    }
  }
  // Peers that stall in the middle of a write.
  void HoldSlotsToLand() {
    for (std::size_t held = 0; held < kSlots; ++held) {
      RawLane& lane = NewPeer().lane();
      const auto bytes = lane.Encode(Access(Type::kWrite, Key(), kSlot));
      ASSERT_TRUE(lane.SendBytes(std::span(bytes).first(bytes.size() - 1)));
      const Deadline limit = Soon();
      while (accepted_.back().Counters().traffic.lanes.frames_received == 0) {
        ASSERT_FALSE(limit.expired());
        std::this_thread::yield();
      }
    }
  }
  wire::KeyBody Key() const { return region_.remote().key; }

  Link link_ = MakeLink(FewSlots());
  Endpoint& far_ = *link_.far.endpoint;
  Connection& to_near_ = *link_.far.connection;
  cuda::SimulatedDevices* devices_ =
      dynamic_cast<cuda::SimulatedDevices*>(Must(cuda::OpenDevices(FewSlots())));
  MirroredMemory memory_{devices_, 0, 3 * kSlot, 1};
  GuardedMemory on_host_{3 * kSlot, 2};
  GuardedMemory sink_{3 * kSlot, 3};
  Region region_ = Must(far_.Register(memory_.span(), Rights::kReadWrite));
  Region host_region_ = Must(far_.Register(on_host_.span(), Rights::kReadWrite));
  Region near_region_ = Must(link_.near.endpoint->Register(sink_.span(), Rights::kReadWrite));
  std::deque<RawPeer> peers_;
  std::vector<Connection> accepted_;
};

TEST_F(DeviceSlotsTest, WhatWaitsForASlotLetsHostMemoryPassAndMayBeCancelled) {
  HoldSlotsToSend();
  const RemoteRegion key = near_region_.remote();
  Operation waits = Must(to_near_.Write(region_, 0, key, 0, 3 * kSlot));
  EXPECT_TRUE(EndsOk(to_near_.Write(host_region_, 0, key, 0, 3 * kSlot)));
  EXPECT_TRUE(SameBytes(sink_.Copy(), on_host_.Copy()));
  EXPECT_FALSE(waits.Poll());
  waits.Cancel();
  EXPECT_TRUE(EndsWith(Code::kCancelled, waits));
  // The next one continues once there are slots.
  Operation next = Must(to_near_.Write(region_, 0, key, 0, 3 * kSlot));
  EXPECT_FALSE(next.Poll());
  for (RawPeer& peer : peers_) ASSERT_TRUE(peer.lane().AckAll());
  EXPECT_TRUE(EndsOk(next));
  EXPECT_TRUE(SameBytes(sink_.Copy(), memory_.Copy()));
}

TEST_F(DeviceSlotsTest, SlotsOfPeersThatAreGoneComeBack) {
  HoldSlotsToSend();
  HoldSlotsToLand();
  const RemoteRegion key = near_region_.remote();
  const Operation out = Must(to_near_.Write(region_, 0, key, 0, 3 * kSlot));
  for (RawPeer& peer : peers_) peer.lane().Close();
  EXPECT_TRUE(EndsOk(out));
  EXPECT_TRUE(SameBytes(sink_.Copy(), memory_.Copy()));
  const auto back = RandomBytes(3 * kSlot, 9);
  std::copy(back.begin(), back.end(), sink_.span().begin());
  EXPECT_TRUE(EndsOk(to_near_.Read(region_, 0, key, 0, 3 * kSlot)));
  EXPECT_TRUE(SameBytes(memory_.Copy(), back));
  // All of them, according to the endpoint's counters.
  const auto free_slots = [&] {
    const std::vector<StagingCounters> staging = far_.Counters().staging;
    return staging.size() == 1 ? staging[0].to_network.free + staging[0].from_network.free : 0;
  };
  const Deadline limit = Soon();
  while (free_slots() < 2 * kSlots && !limit.expired()) std::this_thread::yield();
  const std::vector<StagingCounters> staging = far_.Counters().staging;
  ASSERT_EQ(staging.size(), 1U);
  EXPECT_EQ(staging[0].ordinal, 0);
  EXPECT_EQ(staging[0].slots, kSlots);
  EXPECT_EQ(free_slots(), 2 * kSlots);
  EXPECT_EQ(staging[0].to_network.waiting + staging[0].from_network.waiting, 0U);
  EXPECT_GE(staging[0].to_network.bytes, 3 * kSlot);
  EXPECT_TRUE(link_.near.endpoint->Counters().staging.empty()) << "it has used host memory only";
}

TEST_F(DeviceSlotsTest, AnswersThatWaitForASlotAreRefusedWhenTheirRegionGoes) {
  HoldSlotsToSend();
  MirroredMemory other(devices_, 0, kSlot, 5);
  Region on_device = Must(far_.Register(other.span(), Rights::kRead));
  RawLane& lane = NewPeer().lane();
  ASSERT_TRUE(lane.Say(Access(Type::kReadRequest, on_device.remote().key, kSlot, 0)));
  ASSERT_TRUE(lane.Say(Access(Type::kReadRequest, host_region_.remote().key, 10, 1)));
  ASSERT_TRUE(lane.Say(Access(Type::kReadRequest, Key(), kSlot, 2)));
  EXPECT_TRUE(lane.IsQuiet());
  // The operation queued behind it, too.
  EXPECT_TRUE(host_region_.Deregister(Soon()));
  EXPECT_TRUE(on_device.Deregister(Soon()));
  other.Free();
  for (const std::uint32_t slice : {0U, 1U}) {
    const auto refusal = lane.Expect(Type::kReadRefused).Body<wire::RefuseBody>();
    EXPECT_EQ(refusal.slice, slice);
    EXPECT_EQ(refusal.code, static_cast<std::uint8_t>(Code::kRefused));
  }
  EXPECT_TRUE(lane.IsQuiet());
  for (RawPeer& peer : peers_) ASSERT_TRUE(peer.lane().AckAll());
  EXPECT_EQ(lane.Expect(Type::kReadData).payload.size(), kSlot);
}

TEST_F(DeviceSlotsTest, AReceiveThatWaitsForASlotMayBeCancelled) {
  HoldSlotsToLand();
  Connection& to_far = *link_.near.connection;
  EXPECT_TRUE(EndsOk(to_far.Send(5, on_host_.span().first(1000))));
  ASSERT_TRUE(to_far.Notify(BytesOf("it is there")));
  ASSERT_TRUE(to_near_.TakeNotification(Soon()));
  MirroredMemory into(devices_, 0, kSlot, 5);
  Operation receive = Must(to_near_.Recv(5, kWholeTag, into.span()));
  EXPECT_FALSE(receive.Poll());
  receive.Cancel();
  EXPECT_TRUE(EndsWith(Code::kCancelled, receive));
  into.Free();
  const Operation write = Must(to_far.Write(near_region_, 0, region_.remote(), 0, 3 * kSlot));
  for (RawPeer& peer : peers_) peer.lane().Close();
  EXPECT_TRUE(EndsOk(write));
  EXPECT_TRUE(SameBytes(memory_.Copy(), sink_.Copy()));
}

// Otherwise its sender would take a lost refusal for a write that is in place.
TEST_F(DeviceSlotsTest, ARefusalIsRememberedWhileFramesBeforeItLand) {
  RawPeer& peer = NewPeer();
  wire::KeyBody wrong = Key();
  wrong.token ^= 1;
  devices_->Pause();
  ASSERT_TRUE(peer.lane().Say(Access(Type::kWrite, Key(), kSlot)));
  ASSERT_TRUE(peer.lane().Say(Access(Type::kWrite, Key(), kSlot)));
  ASSERT_TRUE(peer.lane().Say(Access(Type::kWrite, wrong, 10)));
  EXPECT_EQ(peer.lane().Expect(Type::kNack).Body<wire::RefuseBody>().sequence, 2U);
  // None of them may be acknowledged yet, not even the one that needs no copy.
  ASSERT_TRUE(peer.lane().Say({.type = Type::kPing}));
  EXPECT_EQ(peer.lane().Expect(Type::kPong).header.ack, 0U);
  devices_->Resume();
  ASSERT_TRUE(peer.lane().WaitAcked(3));
  wire::RejoinBody rejoin;
  rejoin.connection = peer.welcome().connection;
  rejoin.attempt = 1;
  std::memcpy(rejoin.token, peer.welcome().token, sizeof rejoin.token);
  RawLane lane(far_.port());
  ASSERT_TRUE(lane.Say({.type = Type::kRejoin, .body = Pod(rejoin)}));
  lane.Expect(Type::kRejoined);
  ASSERT_TRUE(lane.Say({.type = Type::kResume, .body = Pod(wire::ResumeBody{})}));
  const RawFrame resumed = lane.Expect(Type::kResumed);
  EXPECT_EQ(resumed.Body<wire::ResumeBody>().finished, 3U);
  EXPECT_EQ(resumed.Body<wire::ResumeBody>().refusals, 1U);
}

TEST_F(DeviceSlotsTest, AReadOfNothingIsAnsweredByNothing) {
  RawLane& lane = NewPeer().lane();
  ASSERT_TRUE(lane.Say(
      {.type = Type::kReadRequest, .operation = 77, .body = Pod(wire::WriteBody{Key(), 3, 0})}));
  const RawFrame answer = lane.Expect(Type::kReadData);
  EXPECT_TRUE(answer.payload.empty());
  EXPECT_EQ(answer.Body<wire::SliceBody>().slice, 3U);
}

}  // namespace
}  // namespace ferry::transfer
