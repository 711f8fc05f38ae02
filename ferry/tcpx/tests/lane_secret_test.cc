// A peer that has not proved that it knows the secret: the plugin hears nothing of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ferry/net/tcp/factory.h"
#include "ferry/net/tcp/frame_prefix.h"
#include "ferry/net/testing/fake_provider.h"
#include "ferry/net/testing/lane_end.h"
#include "ferry/net/testing/raw_peer.h"
#include "ferry/session/testing/conformance.h"
#include "ferry/session/trust.h"
#include "ferry/tcpx/factory.h"
#include "ferry/tcpx/lane/lane_terms_wire.h"
#include "ferry/tcpx/tests/testing/standin.h"
#include "ferry/transfer/testing/linked_endpoints.h"

namespace ferry::tcpx {
namespace {

using net::Address;
using net::CutInto;
using net::Destroy;
using net::FakeNetwork;
using net::Lane;
using net::LaneEnd;
using net::LaneInfo;
using net::Provider;
using net::RawListener;
using net::RawPeer;
using net::RunOn;
using net::TestHost;
using net::ThisProcess;
using session::testing::RawSession;
using session::wire::Type;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::ScopedVariables;
using testing::StandIn;
using testing::Variables;
using transfer::Must;

constexpr const char* kLaneSecret = "sixteen letters!";
constexpr const char* kOtherLaneSecret = "sixteen letters?";

std::optional<Secret> SecretOf(const char* text) { return Secret(SecretText(std::string(text))); }

Config ConfigWith(const std::string& plugin, const char* secret) {
  Config config;
  config.provider = "plugin:" + plugin;
  config.devices = DeviceChoice::None();
  if (secret != nullptr) config.secret = std::string(secret);
  return config;
}

// The provider with a secret and a plugin whose connect() follows a pointer in the handle.
class LaneSecretTest : public ::testing::Test {
 protected:
  LaneSecretTest()
      : log_(std::filesystem::temp_directory_path() /
             ("ferry_lane_secret_" + std::to_string(::getpid()))),
        variables_({{"TOY_STATE", "1"}, {"TOY_HOST", "1"}, {"TOY_LOG", log_.string()}}),
        far_(Must(CreateProvider(ConfigWith(toy_, kLaneSecret), net::tcp::CreateProvider()))) {
    std::ofstream(log_).close();  // what follows is about peers, not about the start
    address_ = Must(far_.Listen({"127.0.0.1", 0}, {}));
  }
  ~LaneSecretTest() override { std::filesystem::remove(log_); }

  // What the plugin was asked since the provider started.
  std::string Calls() const {
    std::ifstream file(log_);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const std::string toy_ = std::string(FERRY_TOY_FOLDER) + "/ferry_toy_v8.so";
  const std::filesystem::path log_;
  const ScopedVariables variables_;
  TestHost far_;
  Address address_;
};

// Comms of earlier tests may still be closed.
auto NothingForAPeer() {
  return AllOf(Not(HasSubstr("listen device")), Not(HasSubstr("connect device")));
}

PluginTerms ToyTerms() {
  PluginTerms terms;
  terms.SetPlugin("Toy");
  terms.plugin_version = 8;
  terms.chunk_bytes = Config().plugin_chunk_bytes;
  terms.tag_base = Config().plugin_tag_base;
  terms.has_secret = 1;
  return terms;
}

std::vector<std::byte> Packed(const PluginTerms& terms) {
  const auto bytes = session::wire::BytesOf(terms);
  return {bytes.begin(), bytes.end()};
}

// The connecting side of a set-up, byte by byte.
class RawSetup : public RawSession {
 public:
  explicit RawSetup(const Address& address) : RawSession(address, session::wire::Role::kPlugin) {}
  explicit RawSetup(RawPeer peer) : RawSession(std::move(peer), session::wire::Role::kPlugin) {}

  void SayHello() { (void)RawSession::SayHello(Packed(ToyTerms())); }
  void SayProof(const char* secret) {
    (void)Say(Type::kProof, session::wire::BytesOf(Prove(*SecretOf(secret))));
  }
  // Takes the welcome in.
  void HearWelcome() {
    const auto welcome = Expect(Type::kWelcome);
    ASSERT_GE(welcome.body.size(), sizeof(Mac));
    exchange().answer.assign(welcome.body.begin(), welcome.body.end() - sizeof(Mac));
  }
  // The confirm frame's body: a handle, and the proof that it is of this lane.
  std::vector<std::byte> Confirm(const Handle& handle) {
    const Mac mac = exchange().ConfirmProof(*SecretOf(kLaneSecret), handle);
    std::vector<std::byte> body(handle.begin(), handle.end());
    body.insert(body.end(), mac.begin(), mac.end());
    return body;
  }
  std::string ReceiveRefusal() {
    const auto refusal = Expect(Type::kRefuse);
    session::wire::MetaReader reader(refusal.body);
    session::wire::RefuseBody body;
    return reader.Read(&body) ? reader.Text() : "malformed";
  }
};

// The listener passes the conformance suite of sessions.
class PluginHost final : public session::testing::SessionHost {
 public:
  session::wire::Role role() const override { return session::wire::Role::kPlugin; }
  Address address() const override { return address_; }
  Secret secret() const override { return *SecretOf(kLaneSecret); }
  std::vector<std::byte> Hello() const override { return Packed(ToyTerms()); }

 private:
  static Config MakeConfig() {
    Config config = ConfigWith(std::string(FERRY_TOY_FOLDER) + "/ferry_toy_v8.so", kLaneSecret);
    config.handshake_timeout = std::chrono::seconds(2);
    return config;
  }

  const ScopedVariables variables_{{{"TOY_STATE", "1"}, {"TOY_HOST", "1"}}};
  TestHost host_{Must(CreateProvider(MakeConfig(), net::tcp::CreateProvider()))};
  const Address address_ = Must(host_.Listen({"127.0.0.1", 0}, MakeConfig()));
};
using session::testing::SessionConformance;
INSTANTIATE_TEST_SUITE_P(PluginListener, SessionConformance,
                         ::testing::Values(session::testing::SessionTarget{
                             "PluginListener", [] { return std::make_unique<PluginHost>(); }}));

TEST_F(LaneSecretTest, AWrongProofIsRefusedBeforeThePluginIsCalled) {
  RawSetup raw(address_);
  raw.SayHello();
  (void)raw.Expect(Type::kChallenge);
  raw.SayProof(kOtherLaneSecret);
  EXPECT_THAT(raw.ReceiveRefusal(), HasSubstr("different secrets"));
  (void)raw.Say(Type::kConfirm, Handle{});
  EXPECT_FALSE(raw.Hear());
  EXPECT_THAT(Calls(), NothingForAPeer());
}

TEST_F(LaneSecretTest, AProofOfAnotherLaneIsRefused) {
  session::wire::ProofBody proof;
  {
    RawSetup honest(address_);
    honest.SayHello();
    (void)honest.Expect(Type::kChallenge);
    proof = honest.Prove(*SecretOf(kLaneSecret));
    (void)honest.Say(Type::kProof, session::wire::BytesOf(proof));
    honest.HearWelcome();
  }
  RawSetup replay(address_);
  replay.SayHello();
  (void)replay.Expect(Type::kChallenge);
  (void)replay.Say(Type::kProof, session::wire::BytesOf(proof));
  EXPECT_THAT(replay.ReceiveRefusal(), HasSubstr("different secrets"));
  EXPECT_THAT(Calls(), Not(HasSubstr("connect device")));
}

// The handle is signed, too: who is between the two sides cannot change it.
TEST_F(LaneSecretTest, AHandleThatWasAlteredIsRefused) {
  RawSetup raw(address_);
  raw.SayHello();
  (void)raw.Expect(Type::kChallenge);
  raw.SayProof(kLaneSecret);
  raw.HearWelcome();
  auto confirm = raw.Confirm(Handle{});
  confirm.front() = std::byte{0xff};
  (void)raw.Say(Type::kConfirm, confirm);
  EXPECT_THAT(raw.ReceiveRefusal(), HasSubstr("did not prove that it knows the secret"));
  EXPECT_THAT(Calls(), Not(HasSubstr("connect device")));
}

// Resumes have no proof.
TEST_F(LaneSecretTest, AHandleInAFrameOfAnotherTypeIsNotActedUpon) {
  for (const Type type : {Type::kResume, Type::kResumed}) {
    RawSetup raw(address_);
    raw.SayHello();
    (void)raw.Expect(Type::kChallenge);
    raw.SayProof(kLaneSecret);
    raw.HearWelcome();
    (void)raw.Say(type, Handle{});
    EXPECT_FALSE(raw.Hear());
  }
  EXPECT_THAT(Calls(), Not(HasSubstr("connect device")));
}

TEST_F(LaneSecretTest, FramesOutOfTurnAreNotActedUpon) {
  for (const Type type : {Type::kProof, Type::kConfirm, Type::kWelcome, Type::kChallenge,
                          Type::kRefuse, Type::kJoin, Type::kResume}) {
    for (const bool after_hello : {false, true}) {
      RawSetup raw(address_);
      if (after_hello) {
        raw.SayHello();
        (void)raw.Expect(Type::kChallenge);
      }
      (void)raw.Say(type, std::vector<std::byte>(96));
      (void)raw.peer().ReadToEnd();
    }
  }
  EXPECT_THAT(Calls(), NothingForAPeer());
}

// All frames at once: none is acted upon before those that must precede it.
TEST_F(LaneSecretTest, FramesThatDoNotWaitForTheChallengeAreRefused) {
  RawSetup raw(address_);
  raw.SayHello();
  raw.SayProof(kLaneSecret);
  (void)raw.Say(Type::kConfirm, raw.Confirm(Handle{}));
  (void)raw.peer().ReadToEnd();
  EXPECT_THAT(Calls(), NothingForAPeer());
}

TEST_F(LaneSecretTest, AHelloMayBeCutAtEveryByte) {
  const auto bytes = RawSetup(address_).Encode(Type::kHello, Packed(ToyTerms()));
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
    RawPeer peer = RawPeer::ConnectTo(address_);
    ASSERT_TRUE(peer.Write(std::span(bytes).first(cut)));
    peer.EndWriting();
    (void)peer.ReadToEnd();
  }
  EXPECT_THAT(Calls(), NothingForAPeer());
}

TEST_F(LaneSecretTest, WhoHasNoSecretIsToldThatOneIsAsked) {
  TestHost near(Must(CreateProvider(ConfigWith(toy_, nullptr), net::tcp::CreateProvider())));
  const auto lane = near.Connect(address_, {});
  ASSERT_FALSE(lane);
  EXPECT_EQ(lane.error().code(), Code::kRefused) << lane.error().ToString();
  EXPECT_THAT(lane.error().message(),
              AllOf(HasSubstr("has no secret, and this side has one"), HasSubstr("SECRET_FILE")));
  EXPECT_THAT(Calls(), NothingForAPeer());
}

// The dialing side does not call its plugin for a listener that proves nothing, either.
TEST_F(LaneSecretTest, AListenerWithoutTheSecretGetsNoHandle) {
  RawListener listener;
  TestHost near(Must(CreateProvider(ConfigWith(toy_, kLaneSecret), net::tcp::CreateProvider())));
  std::thread impostor([&] {
    RawSetup raw{RawPeer(listener.Accept())};
    (void)raw.Expect(Type::kHello);
    (void)raw.Say(Type::kChallenge, session::wire::Nonce{});
    const auto proof = raw.Expect(Type::kProof);
    auto welcome = Packed(ToyTerms());
    session::wire::Append(&welcome, Handle{});
    // All that it has is the other side's own proof.
    if (proof.body.size() == sizeof(session::wire::ProofBody)) {
      welcome.insert(welcome.end(), proof.body.end() - sizeof(Mac), proof.body.end());
    }
    (void)raw.Say(Type::kWelcome, welcome);
    (void)raw.peer().ReadToEnd();
  });
  const auto lane = near.Connect(listener.address(), {});
  impostor.join();
  ASSERT_FALSE(lane);
  EXPECT_EQ(lane.error().code(), Code::kRefused) << lane.error().ToString();
  EXPECT_THAT(lane.error().message(), HasSubstr("did not prove the secret"));
  EXPECT_THAT(Calls(), NothingForAPeer());
}

TEST_F(LaneSecretTest, WhoKnowsTheSecretReachesThePlugin) {
  RawSetup raw(address_);
  raw.SayHello();
  (void)raw.Expect(Type::kChallenge);
  raw.SayProof(kLaneSecret);
  raw.HearWelcome();
  (void)raw.Say(Type::kConfirm, raw.Confirm(Handle{}));  // no state of an earlier connect
  std::unique_ptr<Lane> lane = far_.Accept();
  EXPECT_NE(lane, nullptr);
  RunOn(*far_.loop(), [&] { lane = nullptr; });
  EXPECT_THAT(Calls(), AllOf(HasSubstr("listen device"), HasSubstr("connect device")));
}

// ---- honest sides -------------------------------------------------------------------------------

TEST(LaneSecret, BothSidesOfOneSecretConnect) {
  StandIn standin({});
  (void)Must(standin.Open());
  TestHost near(
      Must(CreateProvider(ConfigWith(standin.path(), kLaneSecret), net::tcp::CreateProvider())));
  TestHost far(
      Must(CreateProvider(ConfigWith(standin.path(), kLaneSecret), net::tcp::CreateProvider())));
  const Address address = Must(far.Listen({"127.0.0.1", 0}, {}));
  auto here = std::make_unique<LaneEnd>(Must(near.Connect(address, {})), near.loop());
  auto there = std::make_unique<LaneEnd>(far.Accept(), far.loop());
  here->Attach();
  there->Attach();
  here->Send(here->Make("payload", CutInto(1 << 20, {})));
  EXPECT_EQ(there->Take(1).size(), 1U);
  Destroy(&here);
  Destroy(&there);
  EXPECT_EQ(standin.Misuse(), "");
}

TEST(LaneSecret, SidesOfTwoSecretsDoNotConnect) {
  StandIn standin({});
  (void)Must(standin.Open());
  TestHost near(
      Must(CreateProvider(ConfigWith(standin.path(), kLaneSecret), net::tcp::CreateProvider())));
  TestHost far(Must(
      CreateProvider(ConfigWith(standin.path(), kOtherLaneSecret), net::tcp::CreateProvider())));
  const Address address = Must(far.Listen({"127.0.0.1", 0}, {}));
  const auto lane = near.Connect(address, {});
  ASSERT_FALSE(lane);
  EXPECT_EQ(lane.error().code(), Code::kRefused) << lane.error().ToString();
  EXPECT_THAT(lane.error().message(), HasSubstr("different secrets"));
}

// ---- without a secret ---------------------------------------------------------------------------

PluginTerms TermsWithoutSecret() {
  PluginTerms terms = ToyTerms();
  terms.has_secret = 0;
  terms.process = ThisProcess();
  return terms;
}

// This process has not listed a raw socket, as a proxy of this machine has not.
TEST_F(LaneSecretTest, WithoutOneAProxyOfThisMachineIsRefused) {
  TestHost open(Must(CreateProvider(ConfigWith(toy_, nullptr), net::tcp::CreateProvider())));
  RawSetup raw(Must(open.Listen({"127.0.0.1", 0}, {})));
  (void)raw.RawSession::SayHello(Packed(TermsWithoutSecret()));
  EXPECT_THAT(raw.ReceiveRefusal(), HasSubstr("is not proved that a process of user"));
  EXPECT_THAT(Calls(), NothingForAPeer());
}

// Keeps this process from opening descriptors.
class DescriptorsAllUsed {
 public:
  DescriptorsAllUsed() {
    (void)::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit none{0, before_.rlim_max};
    (void)::setrlimit(RLIMIT_NOFILE, &none);
  }
  ~DescriptorsAllUsed() { (void)::setrlimit(RLIMIT_NOFILE, &before_); }
  DescriptorsAllUsed(const DescriptorsAllUsed&) = delete;
  DescriptorsAllUsed& operator=(const DescriptorsAllUsed&) = delete;

 private:
  rlimit before_{};
};

TEST_F(LaneSecretTest, WithoutOneAndADescriptorToAskWithTheRefusalSaysSo) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the undefined-behaviour sanitizer built with it needs descriptors";
#endif
  TestHost open(Must(CreateProvider(ConfigWith(toy_, nullptr), net::tcp::CreateProvider())));
  const Address address = Must(open.Listen({"127.0.0.1", 0}, {}));
  RawSetup raw(address);
  // Another one is refused only after the first was accepted.
  RawSetup other(address);
  (void)other.RawSession::SayHello(Packed(TermsWithoutSecret()));
  (void)other.ReceiveRefusal();
  // The check of `other` is kept for a second. Another list of sockets needs a check of its own.
  PluginTerms terms = TermsWithoutSecret();
  ++terms.process.list;
  std::string refusal;
  {
    const DescriptorsAllUsed used;
    (void)raw.RawSession::SayHello(Packed(terms));
    refusal = raw.ReceiveRefusal();
  }
  EXPECT_THAT(refusal, HasSubstr("finding out who the peer is"));
  EXPECT_THAT(Calls(), NothingForAPeer());
}

// A network in memory that shows each side a peer on another machine.
class OtherMachinesLaneTest : public LaneSecretTest {
 protected:
  OtherMachinesLaneTest() { network_.SetFaults({.another_machine = true}); }

  std::unique_ptr<Provider> Make(const std::string& plugin, OnOff insecure) {
    Config config = ConfigWith(plugin, nullptr);
    config.insecure = insecure;
    return Must(CreateProvider(config, network_.CreateProvider()));
  }

  FakeNetwork network_;
};

TEST_F(OtherMachinesLaneTest, OneInsecureSideIsNotEnough) {
  const std::vector<std::pair<OnOff, OnOff>> sides = {
      {OnOff::kOn, OnOff::kOff}, {OnOff::kOff, OnOff::kOn}, {OnOff::kOff, OnOff::kOff}};
  for (const auto& [dialing, listening] : sides) {
    TestHost near(Make(toy_, dialing));
    TestHost far(Make(toy_, listening));
    const auto lane = near.Connect(Must(far.Listen({FakeNetwork::kHost, 0}, {})), {});
    ASSERT_FALSE(lane);
    EXPECT_EQ(lane.error().code(), Code::kRefused) << lane.error().ToString();
    EXPECT_THAT(lane.error().message(), HasSubstr("is on another machine and there is no secret"));
  }
  EXPECT_THAT(Calls(), NothingForAPeer());
}

TEST_F(OtherMachinesLaneTest, TwoInsecureSidesConnectWithOneWarning) {
  StandIn standin({});
  (void)Must(standin.Open());
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i) {
    TestHost near(Make(standin.path(), OnOff::kOn));
    TestHost far(Make(standin.path(), OnOff::kOn));
    const Address address = Must(far.Listen({FakeNetwork::kHost, 0}, {}));
    auto here = std::make_unique<LaneEnd>(Must(near.Connect(address, {})), near.loop());
    auto there = std::make_unique<LaneEnd>(far.Accept(), far.loop());
    here->Attach();
    there->Attach();
    Destroy(&here);
    Destroy(&there);
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  // One in a process, which may repeat the test.
  static bool is_first = true;
  const std::size_t at = log.find("insecure is on");
  EXPECT_EQ(at != std::string::npos, std::exchange(is_first, false)) << log;
  if (at != std::string::npos) {
    EXPECT_EQ(log.rfind("insecure is on"), at) << log;
  }
  EXPECT_EQ(standin.Misuse(), "");
}

TEST(LaneSecret, WithoutOneOnlyPeersOfThisMachineAreTrusted) {
  LaneInfo peer;
  peer.remote = "192.0.2.1:5";
  const Status refused = (session::Trust{false, false}.CheckReach(peer, peer.remote));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kRefused);
  EXPECT_THAT(refused.error().message(),
              AllOf(HasSubstr("192.0.2.1:5"), HasSubstr("FERRY_SECRET_FILE")));
  EXPECT_TRUE((session::Trust{true, false}.CheckReach(peer, peer.remote)));
  EXPECT_TRUE((session::Trust{false, true}.CheckReach(peer, peer.remote)));
  peer.same_machine = true;
  EXPECT_TRUE((session::Trust{false, false}.CheckReach(peer, peer.remote)));
}

}  // namespace
}  // namespace ferry::tcpx
