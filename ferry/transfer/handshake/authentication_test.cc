// Tests which endpoints may connect to which, with and without a shared secret.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <filesystem>
#include <iterator>
#include <string>
#include <thread>
#include <utility>

#include "ferry/net/testing/fake_provider.h"
#include "ferry/net/testing/fault_proxy.h"
#include "ferry/session/exchange.h"
#include "ferry/transfer/testing/linked_endpoints.h"
#include "ferry/transfer/testing/raw_peer.h"

// Two endpoints connect if both know the secret. If neither has one, they trust each other for
// being processes of one user on one machine, or because the settings say so.
namespace ferry::transfer {
namespace {

using ::testing::HasSubstr;
using wire::Type;

Config WithSecret(const std::string& secret) {
  Config config = SmallSlices(3, 2);
  config.secret = secret;
  return config;
}
const std::string kSecret = "correct horse battery staple";
const std::string kOther = "Correct horse battery staple";

void ExpectRefused(const Result<Connection>& result, const std::string& words) {
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), Code::kRefused) << result.error().ToString();
  EXPECT_THAT(result.error().message(), HasSubstr(words));
}

TEST(Secrets, ThatAreTheSameConnectAllLanes) {
  Link link = MakeLink(WithSecret(kSecret));
  EXPECT_EQ(link.near.connection->Info().lanes.size(), 3u);
  EXPECT_TRUE(Works(&link));
}

TEST(Secrets, ThatDifferAreRefusedAndTheEndpointServesOn) {
  const Endpoint server = Must(Endpoint::Create(WithSecret(kSecret)));
  Endpoint pending_peer = Must(Endpoint::Create(WithSecret(kOther)));
  ExpectRefused(pending_peer.Connect(HostAndPort(server.port()), Soon()), "different secrets");
  Endpoint friendly = Must(Endpoint::Create(WithSecret(kSecret)));
  EXPECT_TRUE(friendly.Connect(HostAndPort(server.port()), Soon()));
}

TEST(Secrets, OfOneSideOnlyAreRefusedByTheSideThatHasOne) {
  Endpoint with = Must(Endpoint::Create(WithSecret(kSecret)));
  Endpoint without = Must(Endpoint::Create(SmallSlices()));
  ExpectRefused(without.Connect(HostAndPort(with.port()), Soon()), "asks its peers for a secret");
  ExpectRefused(with.Connect(HostAndPort(without.port()), Soon()), "does not ask for a secret");
}

TEST(Secrets, ThatCannotBeReadFailTheEndpoint) {
  Config config = SmallSlices();
  config.secret_file = "/not/there";
  const auto endpoint = Endpoint::Create(config);
  ASSERT_FALSE(endpoint);
  EXPECT_THAT(endpoint.error().message(), HasSubstr("/not/there"));
}

// An endpoint that is created with a secret of its own.
TEST(Secrets, OfOneEndpointAreProvedInThePlaceOfTheConfigs) {
  const SecretText own = "the secret of one endpoint";
  for (const Config& config : {SmallSlices(3, 2), WithSecret(kSecret)}) {
    Endpoint server = Must(Endpoint::Create(config, own));
    Endpoint client = Must(Endpoint::Create(config));
    EXPECT_EQ(client.Connect(server.address(), Soon()).error().code(), Code::kRefused);
    ExpectRefused(client.Connect(server.address(), Soon(), "the secret of another"),
                  "different secrets");
    const Connection near = Must(client.Connect(server.address(), Soon(), own));
    const Connection far = Must(server.Accept(Soon()));
    EXPECT_EQ(near.Info().lanes.size(), 3u);
    EXPECT_TRUE(Works(near, far));
    // Its own connections prove it, too.
    EXPECT_TRUE(server.Connect(server.address(), Soon()));
  }
}

// ---- identities ---------------------------------------------------------------------------------

// The endpoint lets in whoever identifies himself as "friend" for this handshake.
class IdentityTest : public ::testing::Test {
 protected:
  using Bytes = std::vector<std::byte>;
  static Bytes Identity(std::span<const std::byte> transcript, std::string_view name = "friend") {
    const auto text = std::as_bytes(std::span(name));
    return Joined(Bytes(text.begin(), text.end()), transcript);
  }
  static Status Check(std::span<const std::byte> identity, std::span<const std::byte> transcript) {
    const Bytes right = Identity(transcript);
    if (std::equal(right.begin(), right.end(), identity.begin(), identity.end())) {
      return Ok();
    }
    return Error(Code::kUnsupported, fmt::format("{} bytes are no friend", identity.size()));
  }
  static Config OneConnection() {
    Config config = WithSecret(kSecret);
    config.max_connections = 1;
    config.listen_host = "127.0.0.1";  // one address, so that each call is refused once
    return config;
  }
  Result<Connection> Call(MakeIdentity identify) {
    return caller_.Connect(server_.address(), Soon(), {}, std::move(identify));
  }

  Endpoint server_ = Must(Endpoint::Create(OneConnection(), nullptr, {}, Check));
  Endpoint caller_ = Must(Endpoint::Create(WithSecret(kSecret)));
};

TEST_F(IdentityTest, IsKnownWhenThePeerIsAccepted) {
  Bytes said;
  const Connection near = Must(
      Call([&](std::span<const std::byte> transcript) { return said = Identity(transcript); }));
  const Connection far = Must(server_.Accept(Soon()));
  EXPECT_EQ(said.size(), 6u + 32u);
  EXPECT_TRUE(std::equal(said.begin(), said.end(), far.identity().begin(), far.identity().end()));
  EXPECT_TRUE(near.identity().empty());
  EXPECT_TRUE(Works(near, far));
}

TEST_F(IdentityTest, ThatTheCheckRefusesIsToldWhyAndTakesNoPlace) {
  Bytes recorded;
  ExpectRefused(Call([&](std::span<const std::byte> transcript) {
                  recorded = Identity(transcript);
                  return Identity(transcript, "foe");
                }),
                "35 bytes are no friend");
  ExpectRefused(Call([&](auto /*transcript*/) { return recorded; }), "38 bytes are no friend");
  ExpectRefused(Call(nullptr), "0 bytes are no friend");
  EXPECT_EQ(server_.Counters().handshakes_refused, 3u);
  EXPECT_EQ(server_.Accept(Deadline::After(Clock::duration::zero())).error().code(),
            Code::kTimedOut);
  EXPECT_TRUE(Call([](auto transcript) { return Identity(transcript); }));
}

TEST_F(IdentityTest, OverTheLimitIsNotSent) {
  const auto connected = Call([](auto /*transcript*/) { return Bytes(kMaxIdentityBytes + 1); });
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(connected.error().message(), HasSubstr("769 bytes"));
  ExpectRefused(Call([](auto /*transcript*/) { return Bytes(kMaxIdentityBytes); }),
                "768 bytes are no friend");
}

TEST_F(IdentityTest, NeedsASecretOnBothSides) {
  Endpoint open = Must(Endpoint::Create(SmallSlices()));
  const auto identify = [](auto transcript) { return Identity(transcript); };
  EXPECT_EQ(open.Connect(server_.address(), Soon(), {}, identify).error().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(Endpoint::Create(SmallSlices(), nullptr, {}, Check).error().code(),
            Code::kInvalidArgument);
}

// ---- pending peers of an endpoint with a secret -------------------------------------------------

class GuardTest : public ::testing::Test {
 protected:
  static Mac Sign(Type first, const std::vector<std::byte>& said, const wire::Nonce& theirs,
                  const wire::Nonce& ours, const net::ChannelBinding& binding = {}) {
    Config config;
    config.secret = kSecret;
    const Secret secret = *Must(Secret::FromConfig(config));
    constexpr session::wire::Role kRole = session::wire::Role::kEndpoint;
    const Mac transcript = secret.Sign(
        "transcript", {wire::BytesOf(kRole), wire::BytesOf(first), said, theirs, ours, binding});
    return secret.Sign("client", {transcript, {}});
  }
  static std::vector<std::byte> HelloBytes() {
    wire::HelloBody hello = Hello(Uuid::Random(), 2);
    hello.flags = wire::kHasSecret;
    return Pod(hello);
  }
  wire::Nonce Challenged(RawLane* lane, Type type, const std::vector<std::byte>& said) {
    EXPECT_TRUE(lane->Say({.type = type, .body = said}));
    return lane->Expect(Type::kChallenge).Body<wire::ChallengeBody>().nonce;
  }
  // Sends `hello`, but proves `signed_hello`.
  wire::ProofBody Prove(RawLane* lane, const std::vector<std::byte>& hello,
                        const std::vector<std::byte>& signed_hello) {
    wire::ProofBody proof;
    const wire::Nonce challenge = Challenged(lane, Type::kHello, hello);
    proof.mac = Sign(Type::kHello, signed_hello, challenge, proof.nonce);
    EXPECT_TRUE(lane->Say({.type = Type::kProof, .body = Pod(proof)}));
    return proof;
  }
  void ExpectRefuses(RawLane* lane, const std::string& words) {
    const RawFrame refusal = lane->Expect(Type::kRefuse);
    EXPECT_EQ(refusal.Body<wire::RefuseBody>().code, static_cast<std::uint8_t>(Code::kRefused));
    EXPECT_THAT(refusal.Text<wire::RefuseBody>(), HasSubstr(words));
    lane->WaitClosed();
  }

  Endpoint endpoint_ = Must(Endpoint::Create(WithSecret(kSecret)));
};

TEST_F(GuardTest, EveryChallengeIsAnother) {
  RawLane first(endpoint_.port());
  RawLane second(endpoint_.port());
  const auto hello = HelloBytes();
  EXPECT_NE(Challenged(&first, Type::kHello, hello), Challenged(&second, Type::kHello, hello));
}

TEST_F(GuardTest, AProofThatWasRecordedIsRefusedTheNextTime) {
  const auto hello = HelloBytes();
  RawLane lane(endpoint_.port());
  const wire::ProofBody proof = Prove(&lane, hello, hello);
  (void)lane.Expect(Type::kWelcome);

  RawLane replayed(endpoint_.port());
  (void)Challenged(&replayed, Type::kHello, hello);
  ASSERT_TRUE(replayed.Say({.type = Type::kProof, .body = Pod(proof)}));
  ExpectRefuses(&replayed, "different secrets");
}

TEST_F(GuardTest, AProofOfAnotherHelloIsRefused) {
  RawLane lane(endpoint_.port());
  (void)Prove(&lane, HelloBytes(), HelloBytes());
  ExpectRefuses(&lane, "different secrets");
}

TEST_F(GuardTest, AProofForAnotherTlsConnectionIsRefusedAsSomebodyBetweenTheTwoSides) {
  const net::ChannelBinding other{std::byte{1}};
  const auto hello = HelloBytes();
  RawLane lane(endpoint_.port());
  const wire::Nonce challenge = Challenged(&lane, Type::kHello, hello);
  wire::ProofBody proof{.binding = other};
  proof.mac = Sign(Type::kHello, hello, challenge, proof.nonce, other);
  ASSERT_TRUE(lane.Say({.type = Type::kProof, .body = Pod(proof)}));
  ExpectRefuses(&lane, "somebody is between the two sides");
}

TEST_F(GuardTest, AProofWhoseConnectionWasPutInItsPlaceIsRefused) {
  const net::ChannelBinding other{std::byte{1}};
  const auto hello = HelloBytes();
  RawLane lane(endpoint_.port());
  const wire::Nonce challenge = Challenged(&lane, Type::kHello, hello);
  wire::ProofBody proof;  // claims the connection of its own lane with a proof made for another
  proof.mac = Sign(Type::kHello, hello, challenge, proof.nonce, other);
  ASSERT_TRUE(lane.Say({.type = Type::kProof, .body = Pod(proof)}));
  ExpectRefuses(&lane, "different secrets");
}

TEST_F(GuardTest, AFurtherLaneMustProveTheSecretAsWell) {
  const auto hello = HelloBytes();
  RawLane lane(endpoint_.port());
  (void)Prove(&lane, hello, hello);
  const auto welcome = lane.Expect(Type::kWelcome).Body<wire::WelcomeBody>();
  wire::JoinBody join;
  join.lane = 1;
  join.connection = welcome.connection;
  std::memcpy(join.token, welcome.token, sizeof join.token);
  RawLane further(endpoint_.port());
  (void)Challenged(&further, Type::kJoin, Pod(join));
  ASSERT_TRUE(further.Say({.type = Type::kProof, .body = Pod(wire::ProofBody{})}));
  ExpectRefuses(&further, "different secrets");
}

TEST_F(GuardTest, FramesOutOfTurnCloseTheLaneWithoutAnAnswer) {
  RawLane proof_first(endpoint_.port());
  ASSERT_TRUE(proof_first.Say({.type = Type::kProof, .body = Pod(wire::ProofBody{})}));
  proof_first.WaitClosed();
  RawLane hello_twice(endpoint_.port());
  (void)Challenged(&hello_twice, Type::kHello, HelloBytes());
  ASSERT_TRUE(hello_twice.Say({.type = Type::kHello, .body = HelloBytes()}));
  hello_twice.WaitClosed();
  RawLane short_proof(endpoint_.port());
  (void)Challenged(&short_proof, Type::kHello, HelloBytes());
  ASSERT_TRUE(short_proof.Say({.type = Type::kProof, .body = BytesOf("short")}));
  short_proof.WaitClosed();
}

// ---- endpoints that are not what they claim to be -----------------------------------------------

class ImpostorTest : public ::testing::Test {
 protected:
  // Dials a server that behaves like this after the hello frame.
  template <class Impostor>
  Result<Connection> Call(Impostor impostor) {
    RawListener listener;
    std::jthread other([&] {
      RawLane lane = listener.Accept();
      (void)lane.Expect(Type::kHello);
      impostor(&lane);
      lane.WaitClosed();
    });
    return endpoint_.Connect(HostAndPort(listener.port()), Soon());
  }
  static std::vector<std::byte> Welcome() {
    wire::WelcomeBody welcome;
    welcome.lanes = 1;
    welcome.window_bytes = 64 * 1024;
    return Pod(welcome);
  }

  Endpoint endpoint_ = Must(Endpoint::Create(WithSecret(kSecret)));
};

TEST_F(ImpostorTest, WithoutAChallengeIsRefused) {
  ExpectRefused(Call([](RawLane* lane) {
                  EXPECT_TRUE(lane->Say({.type = Type::kWelcome, .body = Welcome()}));
                }),
                "does not ask for a secret");
}

TEST_F(ImpostorTest, WithoutAProofOfItsOwnIsRefused) {
  for (const std::size_t proof_bytes : {0u, 31u, 32u}) {
    ExpectRefused(
        Call([&](RawLane* lane) {
          EXPECT_TRUE(lane->Say({.type = Type::kChallenge, .body = Pod(wire::ChallengeBody{})}));
          (void)lane->Expect(Type::kProof);
          EXPECT_TRUE(lane->Say({.type = Type::kWelcome,
                                 .body = Joined(Welcome(), std::vector<std::byte>(proof_bytes))}));
        }),
        "did not prove the secret");
  }
}

// The server knows the secret, and proves that for the TLS connection of a man in the middle.
TEST_F(ImpostorTest, WithAProofForAnotherTlsConnectionIsRefused) {
  RawListener listener;
  std::jthread other([&] {
    RawLane lane = listener.Accept();
    const RawFrame hello = lane.Expect(Type::kHello);
    EXPECT_TRUE(lane.Say({.type = Type::kChallenge, .body = Pod(wire::ChallengeBody{})}));
    const auto proof = lane.Expect(Type::kProof).Body<wire::ProofBody>();
    Config config;
    config.secret = kSecret;
    const auto secret = Must(Secret::FromConfig(config));
    const auto welcome = Welcome();
    const session::Exchange exchange{.first = session::wire::Type::kHello,
                                     .opening = hello.rest,
                                     .binding = {std::byte{1}},
                                     .client = proof.nonce,
                                     .identity = {},
                                     .answer = welcome};
    EXPECT_TRUE(lane.Say(
        {.type = Type::kWelcome, .body = Joined(welcome, Pod(exchange.ServerProof(*secret)))}));
    lane.WaitClosed();
  });
  ExpectRefused(endpoint_.Connect(HostAndPort(listener.port()), Soon()),
                "somebody is between the two sides");
}

TEST_F(ImpostorTest, ThatGivesOurOwnProofBackIsRefused) {
  ExpectRefused(
      Call([](RawLane* lane) {
        EXPECT_TRUE(lane->Say({.type = Type::kChallenge, .body = Pod(wire::ChallengeBody{})}));
        const auto proof = lane->Expect(Type::kProof).Body<wire::ProofBody>();
        EXPECT_TRUE(lane->Say({.type = Type::kWelcome, .body = Joined(Welcome(), Pod(proof.mac))}));
      }),
      "did not prove the secret");
}

TEST_F(ImpostorTest, ThatChallengesTwiceEndsTheCall) {
  const auto result = Call([](RawLane* lane) {
    for (int i = 0; i < 2; ++i) {
      (void)lane->Say({.type = Type::kChallenge, .body = Pod(wire::ChallengeBody{})});
    }
  });
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), Code::kCorrupt);
}

// ---- this machine -------------------------------------------------------------------------------

constexpr const char* kNotProved = "it is not proved that a process of user";

std::size_t OpenDescriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

// Neither side has a secret, nor trusts everybody.
class ThisMachineTest : public ::testing::Test {
 protected:
  static Config Cautious(int lanes = 2) {
    Config config = SmallSlices(lanes, 2);
    config.insecure = OnOff::kOff;
    return config;
  }
  // Asks for one lane, and names this process.
  static Saying HelloOfThisProcess() {
    wire::HelloBody hello = Hello(Uuid::Random(), 1);
    hello.process = net::ThisProcess();
    return {.type = Type::kHello, .body = Pod(hello)};
  }
  static void ExpectNotBelieved(RawLane* lane) {
    const RawFrame refusal = lane->Expect(Type::kRefuse);
    EXPECT_EQ(refusal.Body<wire::RefuseBody>().code, static_cast<std::uint8_t>(Code::kRefused));
    EXPECT_THAT(refusal.Text<wire::RefuseBody>(), HasSubstr(kNotProved));
    lane->WaitClosed();
  }

  Endpoint server_ = Must(Endpoint::Create(Cautious()));
};

TEST_F(ThisMachineTest, ProcessesOfOneUserConnectWithoutASecret) {
  Link link = MakeLink(Cautious(3));
  EXPECT_EQ(link.near.connection->Info().lanes.size(), 3u);
  EXPECT_TRUE(Works(&link));
}

// Wherever it is, and though the proxy is a process of this user.
TEST_F(ThisMachineTest, WhoComesThroughAProxyIsRefused) {
  const auto proxy = Must(net::FaultProxy::Start({"127.0.0.1", server_.port()}));
  Endpoint outsider = Must(Endpoint::Create(SmallSlices()));
  const auto refused = outsider.Connect(proxy->address().ToString(), Soon());
  ExpectRefused(refused, kNotProved);
  ExpectRefused(refused, "refused the connection: 127.0.0.1:");
  ExpectRefused(refused, "set FERRY_SECRET_FILE on both sides, or FERRY_INSECURE=on");
  EXPECT_EQ(server_.Counters().handshakes_refused, 1u);
  EXPECT_TRUE(outsider.Connect(HostAndPort(server_.port()), Soon()));
}

TEST_F(ThisMachineTest, AServerBehindAProxyIsNotTrusted) {
  const Endpoint open = Must(Endpoint::Create(SmallSlices()));
  const auto proxy = Must(net::FaultProxy::Start({"127.0.0.1", open.port()}));
  Endpoint caller = Must(Endpoint::Create(Cautious()));
  ExpectRefused(caller.Connect(proxy->address().ToString(), Soon()), kNotProved);
  EXPECT_TRUE(caller.Connect(HostAndPort(open.port()), Soon()));
}

// Also while the one who sent it is connected.
TEST_F(ThisMachineTest, AHelloThatIsSentAgainOverAnotherSocketIsNotBelieved) {
  const Saying hello = HelloOfThisProcess();
  RawLane honest(server_.port());
  honest.List();
  ASSERT_TRUE(honest.Say(hello));
  (void)honest.Expect(Type::kWelcome);
  RawLane again(server_.port());
  ASSERT_TRUE(again.Say(hello));
  ExpectNotBelieved(&again);
  RawLane nobody(server_.port());
  nobody.List();
  ASSERT_TRUE(nobody.Say({.type = Type::kHello, .body = Pod(Hello(Uuid::Random(), 1))}));
  ExpectNotBelieved(&nobody);
}

TEST_F(ThisMachineTest, WhoIsGoneBeforeItIsLookedForHarmsNobody) {
  for (int i = 0; i < 50; ++i) {
    RawLane lane(server_.port());
    lane.List();
    (void)lane.Say(HelloOfThisProcess());
    lane.Close();
  }
  Endpoint caller = Must(Endpoint::Create(Cautious()));
  EXPECT_TRUE(caller.Connect(HostAndPort(server_.port()), Soon()));
}

TEST_F(ThisMachineTest, TwoHundredAtOnceAreLetInAndLeaveNoDescriptor) {
  constexpr int kCrowd = 200;
  Endpoint caller = Must(Endpoint::Create(Cautious()));
  // The first connection opens what the process keeps.
  ASSERT_TRUE(caller.Connect(HostAndPort(server_.port()), Soon()));
  const std::size_t before = OpenDescriptors();
  {
    const Endpoint server = Must(Endpoint::Create(Cautious()));
    std::deque<RawLane> lanes;
    for (int i = 0; i < kCrowd; ++i) {
      RawLane& lane = lanes.emplace_back(server.port());
      lane.List();
      ASSERT_TRUE(lane.Say(HelloOfThisProcess()));
    }
    for (RawLane& lane : lanes) (void)lane.Expect(Type::kWelcome);
  }
  const Deadline limit = Soon();
  while (OpenDescriptors() > before && !limit.expired()) std::this_thread::yield();
  EXPECT_LE(OpenDescriptors(), before);
}

TEST_F(ThisMachineTest, WithASecretAProxyMayBeBetween) {
  Config config = Cautious();
  config.secret = kSecret;
  const Endpoint server = Must(Endpoint::Create(config));
  const auto proxy = Must(net::FaultProxy::Start({"127.0.0.1", server.port()}));
  Endpoint caller = Must(Endpoint::Create(config));
  EXPECT_TRUE(caller.Connect(proxy->address().ToString(), Soon()));
}

// ---- other machines -----------------------------------------------------------------------------

class OtherMachineTest : public ::testing::Test {
 protected:
  OtherMachineTest() { network_.SetFaults({.another_machine = true}); }

  Config Plain(OnOff insecure) {
    Config config = SmallSlices(1, 1);
    config.listen_host = net::FakeNetwork::kHost;
    config.insecure = insecure;
    return config;
  }
  Endpoint NewEndpoint(const Config& config) {
    return Must(Endpoint::Create(config, network_.CreateProvider()));
  }

  net::FakeNetwork network_;
};

TEST_F(OtherMachineTest, IsNotCalledWithoutASecret) {
  const Endpoint server = NewEndpoint(Plain(OnOff::kOn));
  Endpoint client = NewEndpoint(Plain(OnOff::kOff));
  ExpectRefused(client.Connect(server.address(), Soon()), "is on another machine and there is no");
}

TEST_F(OtherMachineTest, IsNotLetInWithoutASecret) {
  const Endpoint server = NewEndpoint(Plain(OnOff::kOff));
  Endpoint client = NewEndpoint(Plain(OnOff::kOn));
  ExpectRefused(client.Connect(server.address(), Soon()), "no secret to authenticate peers");
}

TEST_F(OtherMachineTest, IsTrustedWhereBothSidesWereToldTo) {
  const Endpoint server = NewEndpoint(Plain(OnOff::kOn));
  Endpoint client = NewEndpoint(Plain(OnOff::kOn));
  EXPECT_TRUE(client.Connect(server.address(), Soon()));
}

TEST_F(OtherMachineTest, IsTrustedWithoutASecretWhereTlsKnowsIt) {
  network_.SetFaults({.another_machine = true, .authenticated = true});
  const Endpoint server = NewEndpoint(Plain(OnOff::kOff));
  Endpoint client = NewEndpoint(Plain(OnOff::kOff));
  EXPECT_TRUE(client.Connect(server.address(), Soon()));
}

TEST_F(OtherMachineTest, IsAskedForTheSecretEvenByAnEndpointThatMayBeInsecure) {
  Config config = Plain(OnOff::kOn);
  config.secret = kSecret;
  const Endpoint server = NewEndpoint(config);
  Endpoint pending_peer = NewEndpoint(Plain(OnOff::kOn));
  ExpectRefused(pending_peer.Connect(server.address(), Soon()), "asks its peers for a secret");
  Endpoint peer = NewEndpoint(config);
  EXPECT_TRUE(peer.Connect(server.address(), Soon()));
}

}  // namespace
}  // namespace ferry::transfer
