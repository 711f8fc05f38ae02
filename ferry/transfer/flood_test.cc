#include <gtest/gtest.h>

#include <thread>
#include <utility>

#include "ferry/transfer/testing/linked_endpoints.h"
#include "ferry/transfer/testing/raw_peer.h"

// What a peer that asks and asks and never reads an answer makes the endpoint hold is bounded: it
// is told one thing for many, or is not read from any more after a while.
namespace ferry::transfer {
namespace {

using wire::Type;

constexpr std::uint64_t kMost = 256 << 20;
constexpr int kPatienceMs = 500;

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
    EXPECT_LT(peer_.lane().Flood(frame, kMost, kPatienceMs), kMost);
    EXPECT_FALSE(theirs_.lost());
    ExpectHeld(33 << 20);  // peer_memory, and what each lane may hold
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

// A pong answers all pings before it, so that pings need not wait for their sender to read.
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

// Each is declined, and that is kept until the peer acknowledges it, which this one never does.
TEST_F(FloodTest, OfOffersThatNobodyReceivesEndsTheConnection) {
  const auto offer = peer_.lane().Encode(
      {.type = Type::kOffer, .operation = 1, .body = Pod(wire::TagBody{.tag = 1, .bytes = 1})});
  EXPECT_LT(peer_.lane().Flood(offer, kMost, kPatienceMs), kMost);
  const auto end = theirs_.TakeNotification(Soon());
  ASSERT_FALSE(end);
  EXPECT_EQ(end.error().code(), Code::kCorrupt);
}

TEST_F(FloodTest, OfNotificationsThatNobodyTakesIsStopped) {
  ExpectStopped(
      peer_.lane().Encode({.type = Type::kNotify, .operation = 1, .payload = BytesOf("x")}));
}

// Refusals for which there is no room wait without their words, and so do acknowledgements of what
// comes after them.
TEST_F(FloodTest, APeerThatReadsAfterAllHearsOfEachRefusalBeforeItsFrameIsAcknowledged) {
  constexpr std::uint32_t kWrites = 100'000;
  const auto write = Access(Type::kWrite, {99, 1, 1}, 1);
  const std::uint64_t said = peer_.lane().Flood(write, kWrites * write.size(), kPatienceMs);
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

}  // namespace
}  // namespace ferry::transfer
