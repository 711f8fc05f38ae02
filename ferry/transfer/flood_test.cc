#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <utility>

#include "ferry/transfer/testing/linked_endpoints.h"
#include "ferry/transfer/testing/raw_peer.h"

// A peer that asks and asks and never reads an answer is not read from any more after a while:
// what it makes the endpoint hold is bounded.
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

TEST_F(FloodTest, OfPingsIsStopped) { ExpectStopped(peer_.lane().Encode({.type = Type::kPing})); }

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

TEST_F(FloodTest, APeerThatReadsAfterAllGetsAllItsAnswers) {
  constexpr std::uint64_t kPings = 300'000;
  const auto ping = peer_.lane().Encode({.type = Type::kPing});
  const std::uint64_t said = peer_.lane().Flood(ping, kPings * ping.size(), kPatienceMs);
  ASSERT_LT(said, kPings * ping.size());
  std::atomic<std::uint64_t> pongs{0};
  {
    std::jthread reader([&] {
      while (pongs.load() < kPings) {
        (void)peer_.lane().Expect(Type::kPong);
        pongs.fetch_add(1);
      }
    });
    std::vector<std::byte> rest;
    for (std::uint64_t at = said; at < kPings * ping.size(); ++at) {
      rest.push_back(ping[at % ping.size()]);
    }
    ASSERT_TRUE(peer_.lane().SendBytes(rest));
  }
  EXPECT_EQ(pongs.load(), kPings);
  EXPECT_TRUE(peer_.lane().IsQuiet());
}

}  // namespace
}  // namespace ferry::transfer
