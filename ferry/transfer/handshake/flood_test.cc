// Tests bounds on the memory that a peer which never reads can make an endpoint hold.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "ferry/core/units.h"
#include "ferry/transfer/testing/linked_endpoints.h"
#include "ferry/transfer/testing/raw_peer.h"

// A peer that sends requests without reading any answer makes the endpoint hold a bounded amount of
// memory: one answer stands for many, or the endpoint stops reading from it.
namespace ferry::transfer {
namespace {

using wire::Type;

constexpr std::uint64_t kMax = 256 << 20;
constexpr int kTimeoutMs = 500;

Config SmallBuffers() {
  Config config = SmallSlices(2, 2);
  config.send_buffer_bytes = 64 * 1024;
  config.recv_buffer_bytes = 64 * 1024;
  config.max_operations = 16;
  return config;
}

class FloodTest : public ::testing::Test {
 protected:
  ~FloodTest() override {
    EXPECT_TRUE(memory_.GuardsIntact());
    EXPECT_TRUE(Works(&link_));
  }

  std::vector<std::byte> Access(Type type, wire::KeyBody key, std::size_t payload) {
    auto body = Pod(wire::WriteBody{key, 0, 1});
    wire::Append(&body, wire::BlockOnWire{0, payload == 0 ? 1000 : payload});
    return peer_.lane().Encode(
        {.type = type, .operation = 1, .body = body, .payload = std::vector<std::byte>(payload)});
  }
  void ExpectStopped(const std::vector<std::byte>& frame) {
    EXPECT_LT(peer_.lane().Flood(frame, kMax, kTimeoutMs), kMax);
    EXPECT_FALSE(theirs_.lost());
    ExpectHeld(33 << 20);  // peer_memory, plus what each lane may hold
  }
  void ExpectHeld(std::uint64_t most) {
    const EndpointCounters counters = link_.far.endpoint->Counters();
    EXPECT_LE(counters.held_bytes, most);
    for (const auto& connection : counters.connections) EXPECT_LE(connection.held_bytes, most);
  }

  GuardedMemory memory_{10'000};
  Link link_ = MakeLink(SmallSlices(2, 2), SmallBuffers());
  Region region_ = Must(link_.far.endpoint->Register(memory_.span(), Rights::kReadWrite));
  RawPeer peer_{link_.far.endpoint->port()};
  Connection theirs_ = Must(link_.far.endpoint->Accept(Soon()));
};

TEST_F(FloodTest, OfReadRequestsIsStopped) {
  ExpectStopped(Access(Type::kReadRequest, region_.remote().key, 0));
}

TEST_F(FloodTest, OfReadRequestsThatAreRefusedIsStopped) {
  ExpectStopped(Access(Type::kReadRequest, {99, 1, 1}, 0));
}

TEST_F(FloodTest, OfWritesThatAreRefusedIsStopped) {
  ExpectStopped(Access(Type::kWrite, {99, 1, 1}, 1));
}

// A pong answers all pings before it, so a ping need not wait until its sender reads.
TEST_F(FloodTest, OfPingsTakesNoMoreRoomThanOne) {
  constexpr std::uint64_t kPingBytes = 8 << 20;
  const auto ping = peer_.lane().Encode({.type = Type::kPing});
  EXPECT_GE(peer_.lane().Flood(ping, kPingBytes, 30'000), kPingBytes);
  const std::size_t rest = ping.size() - kPingBytes % ping.size();
  ASSERT_TRUE(peer_.lane().SendBytes(std::span(ping).last(rest % ping.size())));
  ExpectHeld(64 << 10);
  EXPECT_TRUE(peer_.lane().IsQuiet());
}

TEST_F(FloodTest, OfMessagesThatNobodyReceivesIsStopped) {
  ExpectStopped(peer_.lane().Encode({.type = Type::kSend,
                                     .operation = 1,
                                     .body = Pod(wire::TagBody{.tag = 1, .bytes = 1}),
                                     .payload = BytesOf("x")}));
}

// Each is declined, and that answer is kept until the peer acknowledges it, which this one never
// does.
TEST_F(FloodTest, OfRtsFramesThatNobodyReceivesEndsTheConnection) {
  const auto rts = peer_.lane().Encode(
      {.type = Type::kRts, .operation = 1, .body = Pod(wire::TagBody{.tag = 1, .bytes = 1})});
  EXPECT_LT(peer_.lane().Flood(rts, kMax, kTimeoutMs), kMax);
  const auto end = theirs_.TakeNotification(Soon());
  ASSERT_FALSE(end);
  EXPECT_EQ(end.error().code(), Code::kCorrupt);
}

TEST_F(FloodTest, OfNotificationsThatNobodyTakesIsStopped) {
  ExpectStopped(
      peer_.lane().Encode({.type = Type::kNotify, .operation = 1, .payload = BytesOf("x")}));
}

// Refusals for which there is no room are kept without their text, and acknowledgements of later
// frames wait for them.
TEST_F(FloodTest, APeerThatReadsAfterAllHearsOfEachRefusalBeforeItsFrameIsAcknowledged) {
  constexpr std::uint32_t kWrites = 100'000;
  const auto write = Access(Type::kWrite, {99, 1, 1}, 1);
  const std::uint64_t said = peer_.lane().Flood(write, kWrites * write.size(), kTimeoutMs);
  ASSERT_LT(said, kWrites * write.size());
  {
    const std::jthread writer([&] {
      std::vector<std::byte> rest;
      for (std::uint64_t at = said; at < kWrites * write.size(); ++at) {
        rest.push_back(write[at % write.size()]);
      }
      EXPECT_TRUE(peer_.lane().SendBytes(rest));
    });
    for (std::uint32_t i = 0; i < kWrites; ++i) {
      const RawFrame nack = peer_.lane().Expect(Type::kNack);
      ASSERT_EQ(nack.Body<wire::RefuseBody>().sequence, i);
      ASSERT_EQ(nack.Body<wire::RefuseBody>().code, static_cast<std::uint8_t>(Code::kRefused));
      ASSERT_LE(nack.header.ack, i);
    }
  }
  EXPECT_TRUE(peer_.lane().WaitAcked(kWrites));
  EXPECT_TRUE(peer_.lane().IsQuiet());
  ExpectHeld(256 << 10);
}

// The peer keeps a record of each answer until the answer is acknowledged, which must wait for
// refusals. Two sides that went on requesting would both wait for the other to read.
TEST_F(FloodTest, NoReadIsAskedForBeforeTheRefusalsThatWaitHaveBeenSent) {
  GuardedMemory into(100);
  const Region local = Must(link_.far.endpoint->Register(into.span(), Rights::kNone));
  const RemoteRegion remote{peer_.id(), {1, 1, 1}, Rights::kRead, 100};
  const auto write = Access(Type::kWrite, {99, 1, 1}, 1);
  ASSERT_LT(peer_.lane().Flood(write, kMax, kTimeoutMs), kMax);
  const std::uint64_t refused = theirs_.Info().refused_accesses;
  const auto read = theirs_.Read(local, 0, remote, 0, 100);
  std::uint64_t sent = 0;
  auto frame = peer_.lane().Receive();
  for (; frame && frame->header.type == Type::kNack; frame = peer_.lane().Receive()) ++sent;
  ASSERT_TRUE(frame.has_value());
  EXPECT_EQ(frame->header.type, Type::kReadRequest);
  EXPECT_GE(sent, refused);
  peer_.lane().Close();
  EXPECT_TRUE(EndsWith(Code::kPeerLost, read));
}

// RTS frames that are declined; each answer is kept until the peer acknowledges it.
class DeclinedRtsFramesTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kPeerMemory = kMiB;

  static Config LittleMemory() {
    Config config = SmallBuffers();
    config.peer_memory = kPeerMemory;
    config.unexpected_bytes = config.notification_bytes = 64 * kKiB;
    return config;
  }
  // Returns false if the connection was closed because of them, or before they were answered.
  bool SendRts(int count) {
    for (int i = 0; i < count; ++i) {
      if (!peer_.lane().Say(
              {.type = Type::kRts, .operation = 1, .body = Pod(wire::TagBody{1, 1})})) {
        return false;
      }
    }
    return peer_.lane().UntilPong().has_value();
  }
  std::uint64_t held() { return endpoint_.Counters().held_bytes; }

  Endpoint endpoint_ = Must(Endpoint::Create(LittleMemory()));
  RawPeer peer_{endpoint_.port()};
  Connection theirs_ = Must(endpoint_.Accept(Soon()));
};

TEST_F(DeclinedRtsFramesTest, DoNotEndTheConnectionWhenTheMemoryIsFull) {
  while (held() < kPeerMemory + kPeerMemory / 2) ASSERT_TRUE(SendRts(100));
  ASSERT_TRUE(peer_.lane().AckAll());
  ASSERT_TRUE(SendRts(1));
  EXPECT_FALSE(theirs_.lost());
  EXPECT_LT(held(), kPeerMemory / 4);
}

TEST_F(DeclinedRtsFramesTest, EndTheConnectionAtTwiceTheLimitWhenThePeerAcknowledgesNothing) {
  std::uint64_t most = 0;
  while (SendRts(100)) {
    most = std::max(most, held());
    ASSERT_LT(most, 2 * kPeerMemory + 128 * kKiB);
  }
  EXPECT_GT(most, 2 * kPeerMemory - 128 * kKiB);
  const auto end = theirs_.TakeNotification(Soon());
  ASSERT_FALSE(end);
  EXPECT_EQ(end.error().code(), Code::kCorrupt);
  EXPECT_NE(end.error().message().find("no acknowledgements"), std::string::npos);
}

}  // namespace
}  // namespace ferry::transfer
