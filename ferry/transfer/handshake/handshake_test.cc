// Tests the handshake on both sides, and how malformed handshakes are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <utility>

#include "ferry/transfer/testing/linked_endpoints.h"
#include "ferry/transfer/testing/raw_peer.h"

// How connections are established, and how peers are treated that violate the handshake.
namespace ferry::transfer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using wire::Type;

// ---- pending peers ------------------------------------------------------------------------------

class PendingPeerTest : public ::testing::Test {
 protected:
  explicit PendingPeerTest(const Config& config = SmallSlices(3, 2)) : link_(MakeLink(config)) {}
  ~PendingPeerTest() override { EXPECT_TRUE(Works(&link_)); }

  std::uint16_t port() { return link_.far.endpoint->port(); }
  Saying HelloOf(std::uint16_t lanes) {
    return {.type = Type::kHello, .body = Pod(Hello(Uuid::Random(), lanes))};
  }
  wire::JoinBody JoinOf(const wire::WelcomeBody& welcome, std::uint16_t lane) {
    wire::JoinBody join;
    join.lane = lane;
    join.connection = welcome.connection;
    std::memcpy(join.token, welcome.token, sizeof join.token);
    return join;
  }
  // The first two of three lanes.
  wire::WelcomeBody OpenTwoOfThree(RawLane* first, RawLane* second) {
    EXPECT_TRUE(first->Say(HelloOf(3)));
    const auto welcome = first->Expect(Type::kWelcome).Body<wire::WelcomeBody>();
    EXPECT_TRUE(second->Say({.type = Type::kJoin, .body = Pod(JoinOf(welcome, 1))}));
    (void)second->Expect(Type::kJoined);
    return welcome;
  }
  void ExpectNobodyAccepted() {
    const auto accepted = link_.far.endpoint->Accept(Now());
    ASSERT_FALSE(accepted);
    EXPECT_EQ(accepted.error().code(), Code::kTimedOut);
  }
  void ExpectRefused(RawLane* lane, Code code, const std::string& words) {
    const RawFrame refusal = lane->Expect(Type::kRefuse);
    EXPECT_EQ(refusal.Body<wire::RefuseBody>().code, static_cast<std::uint8_t>(code));
    EXPECT_THAT(refusal.Text<wire::RefuseBody>(), HasSubstr(words));
    lane->WaitClosed();
  }

  Link link_;
};

TEST_F(PendingPeerTest, AHelloOfAnotherVersionIsAnsweredByARefusalThatNamesBoth) {
  wire::HelloBody hello = Hello(Uuid::Random(), 1);
  hello.version = 7;
  RawLane lane(port());
  ASSERT_TRUE(lane.Say({.type = Type::kHello, .body = Pod(hello)}));
  const RawFrame refusal = lane.Expect(Type::kRefuse);
  EXPECT_EQ(refusal.Body<wire::RefuseBody>().code, static_cast<std::uint8_t>(Code::kUnsupported));
  EXPECT_THAT(refusal.Text<wire::RefuseBody>(),
              AllOf(HasSubstr("version 3"), HasSubstr("not 7"), HasSubstr("same release")));
  lane.WaitClosed();
  ExpectNobodyAccepted();
}

// A later version promises only that its version number is the first field.
TEST_F(PendingPeerTest, AHelloOfAnotherVersionMayHaveAnyLength) {
  for (const std::size_t rest : {0U, 1U, 500U}) {
    RawLane lane(port());
    ASSERT_TRUE(lane.Say({.type = Type::kHello,
                          .body = Joined(Pod(std::uint16_t{9}), std::vector<std::byte>(rest))}));
    ExpectRefused(&lane, Code::kUnsupported, "not 9");
  }
}

TEST_F(PendingPeerTest, AMalformedHelloIsClosedWithoutAnAnswer) {
  wire::HelloBody no_lanes = Hello(Uuid::Random(), 0);
  wire::HelloBody no_window = Hello(Uuid::Random(), 1, 0);
  auto cut = Pod(Hello(Uuid::Random(), 1));
  cut.pop_back();
  for (const auto& body : {Pod(no_lanes), Pod(no_window), cut, std::vector<std::byte>(1)}) {
    RawLane lane(port());
    ASSERT_TRUE(lane.Say({.type = Type::kHello, .body = body}));
    EXPECT_FALSE(lane.Receive());
  }
  ExpectNobodyAccepted();
}

TEST_F(PendingPeerTest, GarbageInPlaceOfAHelloIsClosedWithoutAnAnswer) {
  std::vector<std::byte> noise(1000);
  FillRandom(noise);
  noise[0] = std::byte{0};
  for (const auto& bytes : {BytesOf("GET / HTTP/1.0\r\n\r\n"), noise}) {
    RawLane lane(port());
    (void)lane.SendBytes(bytes);
    EXPECT_FALSE(lane.Receive());
  }
  for (const Type type : {Type::kWrite, Type::kWelcome, Type::kPing, static_cast<Type>(200)}) {
    RawLane lane(port());
    ASSERT_TRUE(lane.Say({.type = type, .body = std::vector<std::byte>(100)}));
    EXPECT_FALSE(lane.Receive());
  }
  RawLane with_payload(port());
  Saying hello = HelloOf(1);
  hello.payload = BytesOf("x");
  ASSERT_TRUE(with_payload.Say(hello));
  EXPECT_FALSE(with_payload.Receive());
  ExpectNobodyAccepted();
}

TEST_F(PendingPeerTest, AJoinWithAWrongTokenIsRefusedAndTheConnectionCanStillBeCompleted) {
  RawLane first(port());
  ASSERT_TRUE(first.Say(HelloOf(2)));
  const auto welcome = first.Expect(Type::kWelcome).Body<wire::WelcomeBody>();
  wire::JoinBody forged = JoinOf(welcome, 1);
  forged.token[15] ^= 1;
  RawLane intruder(port());
  ASSERT_TRUE(intruder.Say({.type = Type::kJoin, .body = Pod(forged)}));
  ExpectRefused(&intruder, Code::kUnavailable, "belongs to no connection");
  RawLane second(port());
  ASSERT_TRUE(second.Say({.type = Type::kJoin, .body = Pod(JoinOf(welcome, 1))}));
  (void)second.Expect(Type::kJoined);
  EXPECT_TRUE(link_.far.endpoint->Accept(Soon()));
}

TEST_F(PendingPeerTest, AJoinOfALaneThatIsTakenOrDoesNotExistIsRefused) {
  RawLane first(port());
  ASSERT_TRUE(first.Say(HelloOf(2)));
  const auto welcome = first.Expect(Type::kWelcome).Body<wire::WelcomeBody>();
  for (const unsigned lane : {0U, 2U, 65535U}) {
    RawLane again(port());
    ASSERT_TRUE(again.Say(
        {.type = Type::kJoin, .body = Pod(JoinOf(welcome, static_cast<std::uint16_t>(lane)))}));
    ExpectRefused(&again, Code::kRefused, "is not free");
  }
  wire::JoinBody unknown = JoinOf(welcome, 1);
  unknown.connection += 1000;
  RawLane lost(port());
  ASSERT_TRUE(lost.Say({.type = Type::kJoin, .body = Pod(unknown)}));
  ExpectRefused(&lost, Code::kUnavailable, "belongs to no connection");
  ExpectNobodyAccepted();
}

TEST_F(PendingPeerTest, AConnectionThatLosesALaneBeforeItIsCompleteIsForgotten) {
  RawLane first(port());
  wire::WelcomeBody welcome;
  {
    RawLane second(port());
    welcome = OpenTwoOfThree(&first, &second);
  }
  first.WaitClosed();
  RawLane third(port());
  ASSERT_TRUE(third.Say({.type = Type::kJoin, .body = Pod(JoinOf(welcome, 2))}));
  ExpectRefused(&third, Code::kUnavailable, "belongs to no connection");
  ExpectNobodyAccepted();
}

TEST_F(PendingPeerTest, NobodyGetsMoreLanesThanTheEndpointHas) {
  RawLane first(port());
  ASSERT_TRUE(first.Say(HelloOf(65535)));
  EXPECT_EQ(first.Expect(Type::kWelcome).Body<wire::WelcomeBody>().lanes, 3);
}

// Its lanes come up on several loops while others of them are already closed.
TEST_F(PendingPeerTest, PeersThatVanishAsTheirConnectionComesUpHarmNobody) {
  for (int round = 0; round < 50; ++round) {
    RawPeer peer(port(), 3);
    ASSERT_TRUE(
        peer.lane(static_cast<std::size_t>(round) % 3).Say({.type = static_cast<Type>(99)}));
    peer.lane(static_cast<std::size_t>(round + 1) % 3).Close();
  }
  RawPeer steady(port(), 3);
  ASSERT_TRUE(steady.lane(0).Say({.type = Type::kNotify, .payload = BytesOf("here")}));
  // Those that were not dropped yet come first.
  while (!Must(link_.far.endpoint->Accept(Soon())).TakeNotification(Soon())) {
  }
}

Config ShortTimeout() {
  Config config = SmallSlices(3, 1);
  config.handshake_timeout = std::chrono::seconds(2);
  return config;
}

class SilentPendingPeerTest : public PendingPeerTest {
 protected:
  SilentPendingPeerTest() : PendingPeerTest(ShortTimeout()) {}
};

TEST_F(SilentPendingPeerTest, AHelloThatNeverComesIsNotWaitedForLong) {
  RawLane nothing(port());
  RawLane half(port());
  auto bytes = half.Encode(HelloOf(1));
  bytes.resize(bytes.size() / 2);
  ASSERT_TRUE(half.SendBytes(bytes));
  nothing.WaitClosed();
  half.WaitClosed();
}

TEST_F(SilentPendingPeerTest, LanesThatNeverJoinAreNotWaitedForLong) {
  RawLane first(port());
  RawLane second(port());
  (void)OpenTwoOfThree(&first, &second);
  first.WaitClosed();
  second.WaitClosed();
  ExpectNobodyAccepted();
}

// ---- the dialing side ---------------------------------------------------------------------------

class CallTest : public ::testing::Test {
 protected:
  void ExpectError(const Result<Connection>& result, Code code, const std::string& words) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code(), code) << result.error().ToString();
    EXPECT_THAT(result.error().message(), HasSubstr(words));
  }
  // Dials a server that reads the hello frame and answers with these bytes; checks how the dial
  // fails.
  void ExpectAnswerFails(const std::vector<std::byte>& answer, Code code,
                         const std::string& words) {
    RawListener listener;
    std::jthread other([&] {
      RawLane lane = listener.Accept();
      (void)lane.Expect(Type::kHello);
      ASSERT_TRUE(lane.SendBytes(answer));
      lane.WaitClosed();
    });
    ExpectError(endpoint_.Connect(HostAndPort(listener.port()), Soon()), code, words);
  }
  std::vector<std::byte> Encoded(const Saying& saying) {
    return RawLane(UniqueFd()).Encode(saying);
  }

  Endpoint endpoint_ = Must(Endpoint::Create(SmallSlices(2, 2)));
};

TEST_F(CallTest, ToAPortWhereNobodyListensIsPeerLost) {
  std::uint16_t port = 0;
  {
    RawListener listener;
    port = listener.port();
  }
  ExpectError(endpoint_.Connect(HostAndPort(port), Soon()), Code::kPeerLost, "check that the peer");
}

TEST_F(CallTest, ToAnUnknownHostIsAnInvalidArgument) {
  ExpectError(endpoint_.Connect("no-such-host.invalid:1", Soon()), Code::kInvalidArgument,
              "no-such-host.invalid");
  ExpectError(endpoint_.Connect("", Soon()), Code::kInvalidArgument, "\"\"");
  ExpectError(endpoint_.Connect("127.0.0.1", Soon()), Code::kInvalidArgument, "a host and a port");
  ExpectError(endpoint_.Connect(EndpointAddress{}, Soon()), Code::kInvalidArgument, "no host");
}

TEST_F(CallTest, ToSomebodyWhoNeverAnswersEndsAtItsDeadline) {
  RawListener listener;
  ExpectError(
      endpoint_.Connect(HostAndPort(listener.port()), Deadline::After(std::chrono::seconds(1))),
      Code::kTimedOut, "did not finish the handshake in time");
}

TEST_F(CallTest, ToSomebodyWhoNeverAnswersEndsAtTheConnectTimeoutWithoutADeadline) {
  Config config = SmallSlices();
  config.connect_timeout = std::chrono::seconds(1);
  Endpoint hasty = Must(Endpoint::Create(config));
  RawListener listener;
  ExpectError(hasty.Connect(HostAndPort(listener.port()), Deadline::Never()), Code::kTimedOut,
              "did not finish the handshake in time");
}

TEST_F(CallTest, ToAnotherEndpointThanTheAddressMeansIsRefused) {
  Endpoint other = Must(Endpoint::Create(SmallSlices()));
  EndpointAddress address = other.address();
  address.endpoint = Uuid::Random();
  ExpectError(endpoint_.Connect(address, Soon()), Code::kRefused, "it was restarted or replaced");
  address.endpoint = {};
  EXPECT_TRUE(endpoint_.Connect(address, Soon()));
}

TEST_F(CallTest, TriesTheAddressesInTurn) {
  Endpoint other = Must(Endpoint::Create(SmallSlices()));
  EndpointAddress address = other.address();
  {
    RawListener gone;
    address.at.insert(address.at.begin(), {"127.0.0.1", gone.port()});
  }
  EXPECT_TRUE(endpoint_.Connect(address, Soon()));
}

TEST_F(CallTest, ToSomebodyWhoIsNoEndpointSaysSo) {
  ExpectAnswerFails(BytesOf("HTTP/1.1 400 Bad Request\r\n\r\n"), Code::kCorrupt, "no ferry frame");
  ExpectAnswerFails(Encoded({.type = Type::kPong}), Code::kCorrupt, "sent a frame of type 35");
  ExpectAnswerFails(Encoded({.type = Type::kWelcome, .body = BytesOf("short")}), Code::kCorrupt,
                    "malformed welcome");
}

TEST_F(CallTest, ARefusalIsPassedOnWithItsCode) {
  const wire::RefuseBody body{.code = static_cast<std::uint8_t>(Code::kUnsupported)};
  ExpectAnswerFails(
      Encoded({.type = Type::kRefuse, .body = Joined(Pod(body), BytesOf("too \x01 old"))}),
      Code::kUnsupported, "refused the connection: too ? old");
}

TEST_F(CallTest, AWelcomeThatGrantsMoreThanWasAskedForIsMalformed) {
  wire::WelcomeBody welcome;
  welcome.window_bytes = 65536;
  welcome.lanes = 3;
  ExpectAnswerFails(Encoded({.type = Type::kWelcome, .body = Pod(welcome)}), Code::kCorrupt,
                    "malformed welcome");
  welcome.lanes = 0;
  ExpectAnswerFails(Encoded({.type = Type::kWelcome, .body = Pod(welcome)}), Code::kCorrupt,
                    "malformed welcome");
}

TEST_F(CallTest, ACallWhoseFurtherLanesAreNotAnsweredEndsAtItsDeadline) {
  RawListener listener;
  std::jthread other([&] {
    RawLane lane = listener.Accept();
    (void)lane.Expect(Type::kHello);
    wire::WelcomeBody welcome;
    welcome.window_bytes = 65536;
    welcome.lanes = 2;
    ASSERT_TRUE(lane.Say({.type = Type::kWelcome, .body = Pod(welcome)}));
    RawLane second = listener.Accept();
    (void)second.Expect(Type::kJoin);
    lane.WaitClosed();
    second.WaitClosed();
  });
  ExpectError(
      endpoint_.Connect(HostAndPort(listener.port()), Deadline::After(std::chrono::seconds(2))),
      Code::kTimedOut, "did not finish the handshake in time");
}

// ---- dials that are retried ---------------------------------------------------------------------

class CallAgainTest : public CallTest {
 protected:
  // Refuses with a final error.
  void RefuseNext() {
    RawLane lane = listener_.Accept();
    (void)lane.Expect(Type::kHello);
    const wire::RefuseBody body{.code = static_cast<std::uint8_t>(Code::kUnsupported)};
    ASSERT_TRUE(lane.Say({.type = Type::kRefuse, .body = Pod(body)}));
    lane.WaitClosed();
  }
  void ExpectSecondAttempt() {
    ExpectError(endpoint_.Connect(HostAndPort(listener_.port()), Soon()), Code::kUnsupported,
                "(attempt 2; the previous one: ");
  }

  RawListener listener_;
};

TEST_F(CallAgainTest, ThatWereClosedBeforeTheirWelcome) {
  const std::jthread other([&] {
    (void)listener_.Accept().Expect(Type::kHello);
    RefuseNext();
  });
  ExpectSecondAttempt();
}

TEST_F(CallAgainTest, ThatWereResetBeforeTheyWereHeard) {
  const std::jthread other([&] {
    listener_.Accept().Close();  // the hello frame arrives later, or is not read
    RefuseNext();
  });
  ExpectSecondAttempt();
}

TEST_F(CallAgainTest, WhoseFurtherLaneWasClosed) {
  const std::jthread other([&] {
    RawLane lane = listener_.Accept();
    (void)lane.Expect(Type::kHello);
    wire::WelcomeBody welcome;
    welcome.window_bytes = 65536;
    welcome.lanes = 2;
    ASSERT_TRUE(lane.Say({.type = Type::kWelcome, .body = Pod(welcome)}));
    (void)listener_.Accept().Expect(Type::kJoin);
    lane.WaitClosed();
    RefuseNext();
  });
  ExpectSecondAttempt();
}

TEST_F(CallAgainTest, UntilTheDeadline) {
  std::atomic<bool> over{false};
  const std::jthread other([&] {
    while (!over.load()) (void)listener_.Accept();
  });
  const auto result =
      endpoint_.Connect(HostAndPort(listener_.port()), Deadline::After(milliseconds(1000)));
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message(), HasSubstr("(attempt "));
  over.store(true);
  RawLane last(listener_.port());
}

// ---- who gets how many lanes --------------------------------------------------------------------

TEST_F(CallTest, AnEndpointMayCallItself) {
  Connection out = Must(endpoint_.Connect(endpoint_.address(), Soon()));
  Connection in = Must(endpoint_.Accept(Soon()));
  EXPECT_TRUE(Works(out, in));
}

TEST_F(CallTest, LanesAreThoseOfTheSideWithFewer) {
  for (const auto& [near, far] : {std::pair{1, 4}, {4, 1}, {3, 3}}) {
    Link link = MakeLink(SmallSlices(near, 2), SmallSlices(far, 2));
    const auto fewer = static_cast<std::size_t>(std::min(near, far));
    EXPECT_EQ(link.near.connection->Info().lanes.size(), fewer);
    EXPECT_EQ(link.far.connection->Info().lanes.size(), fewer);
    EXPECT_TRUE(Works(&link));
  }
}

TEST_F(CallTest, ManyEndpointsMayCallOneAtOnce) {
  constexpr int kCallers = 8;
  {
    std::vector<std::jthread> callers;
    for (int i = 0; i < kCallers; ++i) {
      callers.emplace_back([&] {
        Endpoint caller = Must(Endpoint::Create(SmallSlices(2, 1)));
        Connection out = Must(caller.Connect(endpoint_.address(), Soon()));
        ASSERT_TRUE(EndsOk(out.Notify(BytesOf("hello"))));
        ASSERT_EQ(TextOf(Must(out.TakeNotification(Soon()))), "hello back");
      });
    }
    for (int i = 0; i < kCallers; ++i) {
      Connection in = Must(endpoint_.Accept(Soon()));
      EXPECT_EQ(TextOf(Must(in.TakeNotification(Soon()))), "hello");
      // Not waited for: the dialing side may be gone before it has acknowledged.
      ASSERT_TRUE(in.Notify(BytesOf("hello back")));
    }
  }
  const auto nobody = endpoint_.Accept(Now());
  ASSERT_FALSE(nobody);
  EXPECT_EQ(nobody.error().code(), Code::kTimedOut);
}

}  // namespace
}  // namespace ferry::transfer
