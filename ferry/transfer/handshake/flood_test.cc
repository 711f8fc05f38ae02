// Tests bounds on the memory that a peer which never reads can make an endpoint hold.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "ferry/core/units.h"
#include "ferry/transfer/lane/lane_site.h"
#include "ferry/transfer/testing/linked_endpoints.h"
#include "ferry/transfer/testing/raw_peer.h"

// A peer that sends requests without reading any answer makes the endpoint hold a bounded amount of
// memory: one answer stands for many, or the endpoint stops reading from it.
namespace ferry::transfer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using wire::Type;

constexpr std::uint64_t kMax = 256 << 20;
constexpr int kTimeoutMs = 500;

// What a peer can make an endpoint hold at most, where `peer_memory` is set.
constexpr std::uint64_t MostFor(std::uint64_t peer_memory) {
  return peer_memory + peer_memory / 10;
}

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
    ExpectHeld(MostFor(Config().peer_memory), /*buffers=*/0);
  }
  // `buffers`: of the lanes of one connection, which count for that only.
  void ExpectHeld(std::uint64_t most, std::uint64_t buffers = 2 * kLaneReserve) {
    const EndpointCounters counters = link_.far.endpoint->Counters();
    EXPECT_LE(counters.held_bytes, most);
    for (const auto& connection : counters.connections) {
      EXPECT_LE(connection.held_bytes, most + buffers);
    }
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

// Each is declined, and that answer is kept, or waits, until the peer acknowledges it or others,
// which this one never does.
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

// A peer with one lane at an endpoint that has little memory for it.
class LittleMemoryTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kPeerMemory = kMiB;

  static Config LittleMemory() {
    Config config = SmallBuffers();
    config.max_operations = Config().max_operations;
    config.peer_memory = kPeerMemory;
    config.unexpected_bytes = config.notification_bytes = 256 * kKiB;
    return config;
  }
  static Saying Rts(std::uint64_t operation) {
    return {.type = Type::kRts, .operation = operation, .body = Pod(wire::TagBody{operation, 1})};
  }
  // Frames of this type that arrive until everything said before is processed; nullopt: the
  // connection was closed.
  std::optional<std::size_t> Count(Type type) {
    const auto said = peer_.lane().UntilPong();
    if (!said) return std::nullopt;
    const auto is_it = [&](const RawFrame& frame) { return frame.header.type == type; };
    return static_cast<std::size_t>(std::count_if(said->begin(), said->end(), is_it));
  }
  std::optional<std::size_t> SendRts(std::size_t count, Type answers) {
    for (std::size_t i = 0; i < count; ++i) {
      if (!peer_.lane().Say(Rts(++last_operation_))) return std::nullopt;
    }
    return Count(answers);
  }
  // Acknowledges all answers, also those that are sent only then, and returns their number.
  std::size_t AwaitAnswers(Type type) {
    std::size_t all = 0;
    for (std::size_t more = 1; more > 0; all += more) {
      more = peer_.lane().AckAll() ? Count(type).value_or(0) : 0;
    }
    return all;
  }
  // With the receive buffer of the lane; 0 once the connection has ended.
  std::uint64_t held() {
    const EndpointCounters counters = endpoint_.Counters();
    return counters.connections.empty() ? 0 : counters.connections.front().held_bytes;
  }

  Endpoint endpoint_ = Must(Endpoint::Create(LittleMemory()));
  RawPeer peer_{endpoint_.port()};
  Connection theirs_ = Must(endpoint_.Accept(Soon()));
  std::uint64_t last_operation_ = 0;
};

TEST_F(LittleMemoryTest, RefusalsOfRtsFramesWaitUntilThePeerAcknowledgesAndNoneIsLost) {
  constexpr std::size_t kRounds = 10;
  constexpr std::size_t kRts = 500;
  std::size_t declined = 0;
  for (std::size_t round = 0; round < kRounds; ++round) {
    const auto more = SendRts(kRts, Type::kDeclined);
    ASSERT_TRUE(more);
    declined += *more;
    ASSERT_LE(held(), MostFor(kPeerMemory));
  }
  EXPECT_GT(declined, 0u);
  EXPECT_LT(declined, 200u);
  const std::size_t late = AwaitAnswers(Type::kDeclined);
  // The others are kept.
  EXPECT_GT(declined + late, kRounds * kRts - kPeerMemory / 400);
  EXPECT_FALSE(theirs_.lost());
  EXPECT_LE(held(), kPeerMemory);
}

TEST_F(LittleMemoryTest, EveryReceiveOfManyIsAskedForWhenThePeerHasAcknowledgedOthers) {
  constexpr std::size_t kReceives = 1000;
  std::vector<std::byte> memory(kReceives);
  for (std::size_t i = 0; i < kReceives; ++i) {
    ASSERT_TRUE(theirs_.Recv(i + 1, kWholeTag, std::span(memory).subspan(i, 1)));
  }
  const auto asked = SendRts(kReceives, Type::kCts);
  ASSERT_TRUE(asked);
  EXPECT_LT(*asked, 200u);
  EXPECT_LE(held(), MostFor(kPeerMemory));
  EXPECT_EQ(*asked + AwaitAnswers(Type::kCts), kReceives);
}

TEST_F(LittleMemoryTest, APeerThatAcknowledgesNothingIsLostATenthAboveTheLimit) {
  std::uint64_t most = 0;
  while (SendRts(500, Type::kDeclined)) {
    most = std::max(most, held());
    ASSERT_LE(most, MostFor(kPeerMemory));
  }
  EXPECT_GT(most, kPeerMemory);
  const auto end = theirs_.TakeNotification(Soon());
  ASSERT_FALSE(end);
  EXPECT_EQ(end.error().code(), Code::kCorrupt);
  EXPECT_THAT(end.error().message(),
              AllOf(HasSubstr("127.0.0.1"), HasSubstr("are held, where 1 MiB"),
                    HasSubstr("FERRY_PEER_MEMORY")));
}

TEST_F(LittleMemoryTest, OfEveryKindTogetherIsBounded) {
  const std::vector<std::byte> text(4096);
  std::uint64_t most = 0;
  for (int round = 0; round < 200; ++round) {
    (void)peer_.lane().Say({.type = Type::kSend,
                            .operation = ++last_operation_,
                            .body = Pod(wire::TagBody{last_operation_, text.size()}),
                            .payload = text});
    (void)peer_.lane().Say({.type = Type::kNotify, .operation = 1, .payload = text});
    if (!SendRts(20, Type::kDeclined)) break;
    most = std::max(most, held());
    ASSERT_LE(most, MostFor(kPeerMemory));
  }
  EXPECT_GT(most, kPeerMemory / 2);
}

}  // namespace
}  // namespace ferry::transfer
