// Tests limits on pending peers: admission, false claims and slow handshakes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <string>
#include <thread>
#include <utility>

#include "ferry/net/admission.h"
#include "ferry/net/provider.h"
#include "ferry/net/tcp/frame_prefix.h"
#include "ferry/transfer/testing/linked_endpoints.h"
#include "ferry/transfer/testing/raw_peer.h"

// Pending peers that exceed their limits: they occupy the places of others, use an id that is not
// theirs, or join a connection that is not theirs. Each is refused and counted, while a legitimate
// peer is served.
namespace ferry::transfer {
namespace {

using ::testing::HasSubstr;
using wire::Type;

constexpr std::uint32_t kFewPendingPeers = 64;

Config Crowdable() {
  Config config = SmallSlices(2, 2);
  config.max_pending_handshakes = kFewPendingPeers;
  return config;
}

class AcceptorTest : public ::testing::Test {
 protected:
  explicit AcceptorTest(const Config& config = Crowdable())
      : endpoint_(Must(Endpoint::Create(config))) {}

  std::string address() { return "127.0.0.1:" + std::to_string(endpoint_.port()); }
  void ExpectRefused(RawLane* lane, Code code, const std::string& words) {
    const RawFrame refusal = lane->Expect(Type::kRefuse);
    EXPECT_EQ(refusal.Body<wire::RefuseBody>().code, static_cast<std::uint8_t>(code));
    EXPECT_THAT(refusal.Text<wire::RefuseBody>(), HasSubstr(words));
    lane->WaitClosed();
  }
  void ExpectServed() {
    Endpoint caller = Must(Endpoint::Create(SmallSlices(2, 1)));
    const Connection out = Must(caller.Connect(endpoint_.address(), Soon()));
    const Connection in = Must(endpoint_.Accept(Soon()));
    EXPECT_TRUE(Works(out, in));
  }
  std::uint64_t refused() { return endpoint_.Counters().handshakes_refused; }
  // A lane that ends with an error is closed just before the error is counted.
  void ExpectCounted(std::uint64_t count) {
    const Deadline limit = Soon();
    while (refused() < count && !limit.expired()) std::this_thread::yield();
    EXPECT_EQ(refused(), count);
  }

  Endpoint endpoint_;
};

// ---- too many -----------------------------------------------------------------------------------

TEST_F(AcceptorTest, AFullHouseOfSilentPendingPeersMakesRoomForAPeer) {
  std::deque<RawLane> silent;
  for (std::uint32_t i = 0; i < kFewPendingPeers; ++i) silent.emplace_back(endpoint_.port());
  ExpectServed();
  // For each of the peer's lanes one silent peer was evicted, the oldest first.
  silent[0].WaitClosed();
  EXPECT_GE(refused(), 1u);
  EXPECT_LE(refused(), 2u);
  EXPECT_FALSE(silent[10].ReceiveReady());
}

class PatientAcceptorTest : public AcceptorTest {
 protected:
  static Config Patient() {
    Config config = Crowdable();
    config.handshake_timeout = std::chrono::minutes(1);
    return config;
  }
  PatientAcceptorTest() : AcceptorTest(Patient()) {}
};

// If they kept their places, an older pending peer would be evicted for the last of them.
TEST_F(PatientAcceptorTest, RefusedPeersGiveTheirPlacesBack) {
  RawLane silent(endpoint_.port());
  for (std::uint32_t i = 0; i < 2 * kFewPendingPeers; ++i) {
    RawLane lane(endpoint_.port());
    ASSERT_TRUE(lane.Say({.type = Type::kHello, .body = Pod(Hello(endpoint_.id(), 1))}));
    ExpectRefused(&lane, Code::kRefused, "is the id of this endpoint itself");
  }
  ExpectCounted(2 * kFewPendingPeers);
  EXPECT_FALSE(silent.WaitClosedFor(milliseconds(0)));
}

class SecretAcceptorTest : public AcceptorTest {
 protected:
  static Config Guarded(Config config = Crowdable()) {
    config.secret = "correct horse battery staple";
    return config;
  }
  SecretAcceptorTest() : AcceptorTest(Guarded()) {}

  // Sends a well-formed hello frame, which is answered, and no proof of the secret. `proved`: it is
  // found to come from a process of this machine.
  void Speak(RawLane* lane, bool proved = true) {
    wire::HelloBody hello = Hello(Uuid::Random(), 2);
    hello.flags = wire::kHasSecret;
    hello.process = net::ThisProcess();
    if (proved) lane->List();
    ASSERT_TRUE(lane->Say({.type = Type::kHello, .body = Pod(hello)}));
    (void)lane->Expect(Type::kChallenge);
  }
  void ExpectPeerServed() {
    Endpoint caller = Must(Endpoint::Create(Guarded(SmallSlices(2, 1))));
    const Connection out = Must(caller.Connect(endpoint_.address(), Soon()));
    const Connection in = Must(endpoint_.Accept(Soon()));
    EXPECT_TRUE(Works(out, in));
  }
};

TEST_F(SecretAcceptorTest, APeerThatSentAHelloIsNotEvictedForOneThatDidNot) {
  std::deque<RawLane> lanes;
  for (std::uint32_t i = 0; i < kFewPendingPeers; ++i) {
    RawLane& lane = lanes.emplace_back(endpoint_.port());
    if (i + 1 < kFewPendingPeers) Speak(&lane);
  }
  // Until the silent peer's grace period is over.
  EXPECT_FALSE(lanes.back().WaitClosedFor(net::Admission::kGrace));
  RawLane newcomer(endpoint_.port());
  lanes.back().WaitClosed();
  ExpectCounted(1);
}

TEST_F(SecretAcceptorTest, WhenAllSentAHelloAPeerWaitsUntilOneHasStalled) {
  const auto begun = Clock::now();
  std::deque<RawLane> spoken;
  for (std::uint32_t i = 0; i < kFewPendingPeers; ++i)
    Speak(&spoken.emplace_back(endpoint_.port()));
  ExpectPeerServed();
  EXPECT_GE(Clock::now() - begun, net::Admission::kStall);
  spoken[0].WaitClosed();
}

// The others may come from anywhere, through a proxy.
TEST_F(SecretAcceptorTest, OfThoseNotProvedToBeOfThisMachineFewKeepTheirPlacesByAHello) {
  std::deque<RawLane> spoken;
  for (std::uint32_t i = 0; i < kFewPendingPeers; ++i) {
    Speak(&spoken.emplace_back(endpoint_.port()), /*proved=*/false);
  }
  RawLane newcomer(endpoint_.port());
  spoken[net::Admission::kMaxSpoken].WaitClosed();
  ExpectCounted(1);
}

class FewConnectionsTest : public AcceptorTest {
 protected:
  static Config Two() {
    Config config = SmallSlices(2, 2);
    config.max_connections = 2;
    return config;
  }
  FewConnectionsTest() : AcceptorTest(Two()) {}
};

TEST_F(FewConnectionsTest, OneTooManyIsToldSoUntilAnotherHasGone) {
  Endpoint caller = Must(Endpoint::Create(SmallSlices(2, 2)));
  Connection first = Must(caller.Connect(address(), Soon()));
  Connection second = Must(caller.Connect(address(), Soon()));
  const auto third = caller.Connect(address(), Soon());
  ASSERT_FALSE(third);
  EXPECT_EQ(third.error().code(), Code::kUnavailable);
  EXPECT_THAT(third.error().message(), HasSubstr("FERRY_MAX_CONNECTIONS"));
  ExpectCounted(1);
  Connection theirs = Must(endpoint_.Accept(Soon()));
  first.Close();
  while (theirs.TakeNotification(Soon())) {
  }
  const Deadline limit = Soon();
  auto again = caller.Connect(address(), Soon());
  while (!again && !limit.expired()) again = caller.Connect(address(), Soon());
  EXPECT_TRUE(again);
}

TEST_F(FewConnectionsTest, ThoseOfItsOwnAreNotCounted) {
  Endpoint other = Must(Endpoint::Create(SmallSlices(2, 2)));
  std::vector<Connection> out;
  for (int i = 0; i < 3; ++i) out.push_back(Must(endpoint_.Connect(other.address(), Soon())));
  Connection in = Must(other.Connect(address(), Soon()));
}

TEST_F(FewConnectionsTest, ThoseWhoseLanesAreStillToComeCount) {
  std::deque<RawLane> lanes;
  for (int i = 0; i < 2; ++i) {
    RawLane& lane = lanes.emplace_back(endpoint_.port());
    ASSERT_TRUE(lane.Say({.type = Type::kHello, .body = Pod(Hello(Uuid::Random(), 2))}));
    (void)lane.Expect(Type::kWelcome);
  }
  RawLane third(endpoint_.port());
  ASSERT_TRUE(third.Say({.type = Type::kHello, .body = Pod(Hello(Uuid::Random(), 2))}));
  ExpectRefused(&third, Code::kUnavailable, "the 2 connections that it allows");
}

// ---- wrong claims -------------------------------------------------------------------------------

TEST_F(AcceptorTest, WhoCallsItselfByOurNameIsRefused) {
  RawLane lane(endpoint_.port());
  ASSERT_TRUE(lane.Say({.type = Type::kHello, .body = Pod(Hello(endpoint_.id(), 1))}));
  ExpectRefused(&lane, Code::kRefused, "is the id of this endpoint itself");
  ExpectCounted(1);
  const Connection out = Must(endpoint_.Connect(endpoint_.address(), Soon()));
  const Connection in = Must(endpoint_.Accept(Soon()));
  EXPECT_TRUE(Works(out, in));
}

TEST_F(AcceptorTest, AHelloThatCannotBeIsClosedWithoutAnAnswer) {
  const auto nobody = Pod(Hello(Uuid{}, 1));
  const auto longer = Joined(Pod(Hello(Uuid::Random(), 1)), BytesOf("x"));
  std::uint64_t refused = 0;
  for (const auto& body : {nobody, longer}) {
    RawLane lane(endpoint_.port());
    ASSERT_TRUE(lane.Say({.type = Type::kHello, .body = body}));
    EXPECT_FALSE(lane.Receive());
    ExpectCounted(++refused);
  }
  ExpectServed();
}

TEST_F(AcceptorTest, LengthsThatNoHandshakeHasAreRefusedBeforeAnythingIsHeld) {
  using net::tcp::FramePrefix;
  std::uint64_t refused = 0;
  for (const auto& [meta, payload] :
       {std::pair<std::uint32_t, std::uint64_t>{net::kMaxPendingPeerMeta + 1, 0},
        {~0U, 0},
        {0, 1},
        {100, ~std::uint64_t{0}}}) {
    RawLane lane(endpoint_.port());
    FramePrefix prefix;
    prefix.meta_bytes = meta;
    prefix.payload_bytes = payload;
    ASSERT_TRUE(lane.SendBytes(Pod(prefix)));
    EXPECT_FALSE(lane.Receive());
    ExpectCounted(++refused);
  }
  ExpectServed();
}

TEST_F(AcceptorTest, GuessesAtAConnectionToRejoinAreRefusedAndHarmItNot) {
  RawPeer peer(endpoint_.port(), 2);
  Connection theirs = Must(endpoint_.Accept(Soon()));
  wire::RejoinBody right;
  right.connection = peer.welcome().connection;
  right.lane = 1;
  right.attempt = 1;
  std::memcpy(right.token, peer.welcome().token, sizeof right.token);
  wire::RejoinBody wrong_token = right;
  wrong_token.token[15] ^= 1;
  wire::RejoinBody wrong_number = right;
  ++wrong_number.connection;
  wire::RejoinBody wrong_lane = right;
  wrong_lane.lane = 2;
  std::uint64_t refused = 0;
  for (const auto& guess : {wrong_token, wrong_number, wrong_lane}) {
    RawLane lane(endpoint_.port());
    ASSERT_TRUE(lane.Say({.type = Type::kRejoin, .body = Pod(guess)}));
    ExpectRefused(&lane, Code::kRefused, "there is no connection");
    ExpectCounted(++refused);
  }
  EXPECT_TRUE(peer.lane(0).IsQuiet());
  EXPECT_FALSE(theirs.lost());
}

// ---- slowness -----------------------------------------------------------------------------------

class ShortTimeoutAcceptorTest : public AcceptorTest {
 protected:
  static Config Hasty() {
    Config config = Crowdable();
    config.handshake_timeout = milliseconds(500);
    return config;
  }
  ShortTimeoutAcceptorTest() : AcceptorTest(Hasty()) {}
};

// The whole frame would take a minute, although each byte arrives well within the timeout.
TEST_F(ShortTimeoutAcceptorTest, AByteNowAndThenGainsNoTime) {
  const auto begun = Clock::now();
  RawLane lane(endpoint_.port());
  const auto hello = lane.Encode({.type = Type::kHello, .body = Pod(Hello(Uuid::Random(), 1))});
  std::size_t said = 0;
  while (said < hello.size() && lane.SendBytes(std::span(hello).subspan(said, 1))) {
    ++said;
    if (lane.WaitClosedFor(milliseconds(50))) break;
  }
  EXPECT_LT(said, hello.size());
  EXPECT_GE(Clock::now() - begun, milliseconds(400));
  ExpectCounted(1);
  ExpectServed();
}

// ---- the places of a peer's own lanes -----------------------------------------------------------

TEST_F(AcceptorTest, APeerThatReplacesALaneAgainAndAgainHoldsOnePlaceForIt) {
  RawPeer peer(endpoint_.port(), 2);
  const Connection theirs = Must(endpoint_.Accept(Soon()));
  wire::RejoinBody rejoin;
  rejoin.lane = 1;
  rejoin.connection = peer.welcome().connection;
  std::memcpy(rejoin.token, peer.welcome().token, sizeof rejoin.token);
  std::vector<RawLane> waiting;
  for (std::uint32_t attempt = 1; attempt <= 20; ++attempt) {
    rejoin.attempt = attempt;
    RawLane& lane = waiting.emplace_back(endpoint_.port());
    ASSERT_TRUE(lane.Say({.type = Type::kRejoin, .body = Pod(rejoin)}));
    lane.Expect(Type::kRejoined);
    if (attempt > 1) {
      EXPECT_TRUE(waiting[attempt - 2].WaitClosedFor(std::chrono::seconds(30))) << attempt;
    }
  }
  EXPECT_FALSE(theirs.lost());
  ExpectServed();
}

}  // namespace
}  // namespace ferry::transfer
