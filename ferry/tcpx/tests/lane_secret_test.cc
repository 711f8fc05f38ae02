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
#include "ferry/tcpx/factory.h"
#include "ferry/tcpx/lane/lane_hello_wire.h"
#include "ferry/tcpx/tests/testing/standin.h"
#include "ferry/transfer/testing/linked_endpoints.h"

namespace ferry::net::plugin {
namespace {

using plugin::testing::ScopedVariables;
using plugin::testing::StandIn;
using plugin::testing::Variables;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using transfer::Must;
using HelloKind = LaneHello::Kind;

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
        far_(Must(CreateProvider(ConfigWith(toy_, kLaneSecret), tcp::CreateProvider()))) {
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

std::vector<std::byte> Framed(std::span<const std::byte> meta) {
  tcp::FramePrefix prefix;
  prefix.meta_bytes = static_cast<std::uint32_t>(meta.size());
  std::vector<std::byte> bytes(sizeof prefix);
  std::memcpy(bytes.data(), &prefix, sizeof prefix);
  bytes.insert(bytes.end(), meta.begin(), meta.end());
  return bytes;
}

// The connecting side of a set-up, byte by byte.
class RawSetup {
 public:
  explicit RawSetup(const Address& address) : peer_(RawPeer::ConnectTo(address)) {
    terms_.plugin = "Toy";
    terms_.plugin_version = 8;
    terms_.chunk_bytes = Config().plugin_chunk_bytes;
    terms_.tag_base = Config().plugin_tag_base;
    terms_.has_secret = true;
    terms_.handle.fill(std::byte{1});
  }

  LaneHello& terms() { return terms_; }
  // Signed with `secret`; nullopt: the mac is that of the terms.
  std::vector<std::byte> Make(HelloKind kind, const std::optional<Secret>& secret) {
    terms_.kind = kind;
    std::vector<std::byte> frame = Pack(terms_);
    if (secret) SetMac(LaneMac(secret, frames_, frame), &frame);
    return frame;
  }
  void Say(std::span<const std::byte> frame) {
    frames_.insert(frames_.end(), frame.begin(), frame.end());
    (void)peer_.Write(Framed(frame));
  }
  void Say(HelloKind kind, const std::optional<Secret>& secret) { Say(Make(kind, secret)); }
  // The next frame; nothing where the connection has ended.
  std::optional<LaneHello> Hear() {
    const std::size_t bytes = Pack(LaneHello()).size();
    if (peer_.Read(sizeof(tcp::FramePrefix)).size() != sizeof(tcp::FramePrefix)) return {};
    const std::vector<std::byte> frame = peer_.Read(bytes);
    auto hello = UnpackLaneHello(frame, "the listener");
    if (!hello) return {};
    frames_.insert(frames_.end(), frame.begin(), frame.end());
    return *std::move(hello);
  }
  RawPeer& peer() { return peer_; }

 private:
  RawPeer peer_;
  LaneHello terms_;
  std::vector<std::byte> frames_;
};

TEST_F(LaneSecretTest, AWrongProofIsRefusedBeforeThePluginIsCalled) {
  const std::vector<std::pair<const char*, std::optional<Secret>>> proofs = {
      {"no mac", std::nullopt}, {"a mac by another secret", SecretOf(kOtherLaneSecret)}};
  for (const auto& [what, secret] : proofs) {
    SCOPED_TRACE(what);
    RawSetup raw(address_);
    raw.Say(HelloKind::kHello, std::nullopt);
    const auto challenge = raw.Hear();
    ASSERT_TRUE(challenge);
    EXPECT_EQ(challenge->kind, HelloKind::kChallenge);
    raw.Say(HelloKind::kProof, secret);
    const auto refusal = raw.Hear();
    ASSERT_TRUE(refusal);
    EXPECT_EQ(refusal->kind, HelloKind::kRefusal);
    EXPECT_THAT(refusal->text, HasSubstr("did not prove that it knows the secret"));
    raw.Say(HelloKind::kHandle, secret);
    (void)raw.peer().ReadToEnd();
  }
  EXPECT_THAT(Calls(), NothingForAPeer());
}

TEST_F(LaneSecretTest, AProofOfAnotherLaneIsRefused) {
  std::vector<std::byte> hello;
  std::vector<std::byte> proof;
  {
    RawSetup honest(address_);
    hello = honest.Make(HelloKind::kHello, std::nullopt);
    honest.Say(hello);
    ASSERT_TRUE(honest.Hear());
    proof = honest.Make(HelloKind::kProof, SecretOf(kLaneSecret));
    honest.Say(proof);
    const auto welcome = honest.Hear();
    ASSERT_TRUE(welcome);
    EXPECT_EQ(welcome->kind, HelloKind::kWelcome);
  }
  RawSetup replay(address_);
  replay.Say(hello);
  ASSERT_TRUE(replay.Hear());
  replay.Say(proof);
  const auto refusal = replay.Hear();
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->kind, HelloKind::kRefusal);
  EXPECT_THAT(Calls(), Not(HasSubstr("connect device")));
}

// The handle is signed, too: who is between the two sides cannot change it.
TEST_F(LaneSecretTest, AHandleThatWasAlteredIsRefused) {
  RawSetup raw(address_);
  raw.Say(HelloKind::kHello, std::nullopt);
  ASSERT_TRUE(raw.Hear());
  raw.Say(HelloKind::kProof, SecretOf(kLaneSecret));
  ASSERT_TRUE(raw.Hear());
  std::vector<std::byte> frame = raw.Make(HelloKind::kHandle, SecretOf(kLaneSecret));
  LaneHello altered = Must(UnpackLaneHello(frame, "this side"));
  altered.handle.fill(std::byte{0xff});
  raw.Say(Pack(altered));
  const auto refusal = raw.Hear();
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->kind, HelloKind::kRefusal);
  EXPECT_THAT(Calls(), Not(HasSubstr("connect device")));
}

TEST_F(LaneSecretTest, FramesOutOfTurnAreRefused) {
  for (const HelloKind kind : {HelloKind::kProof, HelloKind::kHandle, HelloKind::kWelcome,
                               HelloKind::kChallenge, HelloKind::kRefusal}) {
    for (const bool after_hello : {false, true}) {
      if (after_hello && kind == HelloKind::kProof) continue;
      RawSetup raw(address_);
      if (after_hello) {
        raw.Say(HelloKind::kHello, std::nullopt);
        ASSERT_TRUE(raw.Hear());
      }
      raw.Say(kind, SecretOf(kLaneSecret));
      const auto refusal = raw.Hear();
      ASSERT_TRUE(refusal) << static_cast<int>(kind);
      EXPECT_EQ(refusal->kind, HelloKind::kRefusal);
    }
  }
  EXPECT_THAT(Calls(), NothingForAPeer());
}

// All frames at once: none is acted upon before those that must precede it.
TEST_F(LaneSecretTest, FramesThatDoNotWaitForTheChallengeAreRefused) {
  RawSetup raw(address_);
  std::vector<std::byte> all;
  for (const HelloKind kind : {HelloKind::kHello, HelloKind::kProof, HelloKind::kHandle}) {
    const auto frame = Framed(raw.Make(kind, SecretOf(kLaneSecret)));
    all.insert(all.end(), frame.begin(), frame.end());
  }
  ASSERT_TRUE(raw.peer().Write(all));
  (void)raw.peer().ReadToEnd();
  EXPECT_THAT(Calls(), NothingForAPeer());
}

TEST_F(LaneSecretTest, AHelloMayBeCutAtEveryByte) {
  RawSetup model(address_);
  const auto bytes = Framed(model.Make(HelloKind::kHello, std::nullopt));
  model.peer().Close();
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
    RawPeer peer = RawPeer::ConnectTo(address_);
    ASSERT_TRUE(peer.Write(std::span(bytes).first(cut)));
    peer.EndWriting();
    (void)peer.ReadToEnd();
  }
  EXPECT_THAT(Calls(), NothingForAPeer());
}

TEST_F(LaneSecretTest, AProofMayBeCutAtEveryByte) {
  for (std::size_t cut = 0;; cut += 7) {
    RawSetup raw(address_);
    raw.Say(HelloKind::kHello, std::nullopt);
    ASSERT_TRUE(raw.Hear());
    const auto proof = Framed(raw.Make(HelloKind::kProof, SecretOf(kLaneSecret)));
    if (cut >= proof.size()) break;
    ASSERT_TRUE(raw.peer().Write(std::span(proof).first(cut)));
    raw.peer().EndWriting();
    (void)raw.peer().ReadToEnd();
  }
  EXPECT_THAT(Calls(), NothingForAPeer());
}

TEST_F(LaneSecretTest, WhoHasNoSecretIsToldThatOneIsAsked) {
  TestHost near(Must(CreateProvider(ConfigWith(toy_, nullptr), tcp::CreateProvider())));
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
  TestHost near(Must(CreateProvider(ConfigWith(toy_, kLaneSecret), tcp::CreateProvider())));
  std::thread impostor([&] {
    RawPeer raw(listener.Accept());
    const std::size_t frame = sizeof(tcp::FramePrefix) + Pack(LaneHello()).size();
    (void)raw.Read(frame);
    LaneHello terms;
    terms.plugin = "Toy";
    terms.plugin_version = 8;
    terms.chunk_bytes = Config().plugin_chunk_bytes;
    terms.tag_base = Config().plugin_tag_base;
    terms.has_secret = true;
    terms.handle.fill(std::byte{1});
    terms.kind = HelloKind::kChallenge;
    (void)raw.Write(Framed(Pack(terms)));
    const std::vector<std::byte> proof = raw.Read(frame);
    terms.kind = HelloKind::kWelcome;
    // All that it has is the other side's own proof.
    if (proof.size() == frame) {
      terms.mac =
          Must(UnpackLaneHello(std::span(proof).subspan(sizeof(tcp::FramePrefix)), "near")).mac;
    }
    (void)raw.Write(Framed(Pack(terms)));
    (void)raw.ReadToEnd();
  });
  const auto lane = near.Connect(listener.address(), {});
  impostor.join();
  ASSERT_FALSE(lane);
  EXPECT_EQ(lane.error().code(), Code::kRefused) << lane.error().ToString();
  EXPECT_THAT(lane.error().message(), HasSubstr("did not prove that it knows the secret"));
  EXPECT_THAT(Calls(), NothingForAPeer());
}

TEST_F(LaneSecretTest, WhoKnowsTheSecretReachesThePlugin) {
  RawSetup raw(address_);
  raw.terms().handle = Handle{};  // no state of an earlier connect
  raw.Say(HelloKind::kHello, std::nullopt);
  ASSERT_TRUE(raw.Hear());
  raw.Say(HelloKind::kProof, SecretOf(kLaneSecret));
  ASSERT_TRUE(raw.Hear());
  raw.Say(HelloKind::kHandle, SecretOf(kLaneSecret));
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
      Must(CreateProvider(ConfigWith(standin.path(), kLaneSecret), tcp::CreateProvider())));
  TestHost far(
      Must(CreateProvider(ConfigWith(standin.path(), kLaneSecret), tcp::CreateProvider())));
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
      Must(CreateProvider(ConfigWith(standin.path(), kLaneSecret), tcp::CreateProvider())));
  TestHost far(
      Must(CreateProvider(ConfigWith(standin.path(), kOtherLaneSecret), tcp::CreateProvider())));
  const Address address = Must(far.Listen({"127.0.0.1", 0}, {}));
  const auto lane = near.Connect(address, {});
  ASSERT_FALSE(lane);
  EXPECT_EQ(lane.error().code(), Code::kRefused) << lane.error().ToString();
  EXPECT_THAT(lane.error().message(), HasSubstr("did not prove that it knows the secret"));
}

// ---- without a secret ---------------------------------------------------------------------------

// This process has not listed a raw socket, as a proxy of this machine has not.
TEST_F(LaneSecretTest, WithoutOneAProxyOfThisMachineIsRefused) {
  TestHost open(Must(CreateProvider(ConfigWith(toy_, nullptr), tcp::CreateProvider())));
  RawSetup raw(Must(open.Listen({"127.0.0.1", 0}, {})));
  raw.terms().has_secret = false;
  raw.terms().process = ThisProcess();
  raw.Say(HelloKind::kHello, std::nullopt);
  const auto refusal = raw.Hear();
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->kind, HelloKind::kRefusal);
  EXPECT_THAT(refusal->text, HasSubstr("is not proved that a process of user"));
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
  TestHost open(Must(CreateProvider(ConfigWith(toy_, nullptr), tcp::CreateProvider())));
  const Address address = Must(open.Listen({"127.0.0.1", 0}, {}));
  RawSetup raw(address);
  raw.terms().has_secret = false;
  raw.terms().process = ThisProcess();
  // Another one is refused only after the first was accepted.
  RawSetup other(address);
  other.Say(HelloKind::kHello, std::nullopt);
  ASSERT_TRUE(other.Hear());
  std::optional<LaneHello> refusal;
  {
    const DescriptorsAllUsed used;
    raw.Say(HelloKind::kHello, std::nullopt);
    refusal = raw.Hear();
  }
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->kind, HelloKind::kRefusal);
  EXPECT_THAT(refusal->text, HasSubstr("finding out who the peer is"));
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
  const Status refused = CheckTrusted(/*has_secret=*/false, /*insecure=*/false, peer);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kRefused);
  EXPECT_THAT(refused.error().message(),
              AllOf(HasSubstr("192.0.2.1:5"), HasSubstr("FERRY_SECRET_FILE")));
  EXPECT_TRUE(CheckTrusted(/*has_secret=*/true, /*insecure=*/false, peer));
  EXPECT_TRUE(CheckTrusted(/*has_secret=*/false, /*insecure=*/true, peer));
  peer.same_machine = true;
  EXPECT_TRUE(CheckTrusted(/*has_secret=*/false, /*insecure=*/false, peer));
}

}  // namespace
}  // namespace ferry::net::plugin
