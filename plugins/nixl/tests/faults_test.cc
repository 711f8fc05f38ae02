// Tests what an agent gets for bad metadata, bad descriptors and peers that end or stop.
#include <fmt/core.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <thread>

#include "ferry/transfer/endpoint.h"
#include "plugins/nixl/peers/wire.h"
#include "plugins/nixl/tests/agents_test.h"

namespace ferry::nixl::testing {
namespace {

using abi::Direction;
using abi::Outcome;
using ::testing::HasSubstr;

constexpr std::size_t kSmallBytes = 1 << 20;
constexpr std::size_t kLargeBytes = 64 << 20;

abi::Params PacedParams() {
  abi::Params params;
  for (const std::string& setting : tests::PacedSettings()) {
    const std::size_t equals = setting.find('=');
    params[setting.substr(0, equals)] = setting.substr(equals + 1);
  }
  return params;
}

class NixlFaultsTest : public AgentsTest {
 protected:
  // Polls until it ends; how, and checks that it took no longer than a lost peer may take.
  Outcome EndOf(StandInAgent::Transfer* transfer) {
    const tests::Stopwatch watch;
    const Outcome outcome = transfer->Wait(Soon());
    EXPECT_LE(watch.elapsed(), tests::kPeerTimeout + std::chrono::seconds(1) + tests::kSlack);
    return outcome;
  }
  // Slow enough for a transfer to be cut in its middle; the connection is up.
  void BeginPaced() {
    Begin(kLargeBytes, PacedParams());
    auto first = Prepare(Direction::kWrite, kSmallBytes);
    ASSERT_GE(static_cast<int>(first.Post()), 0);
    ASSERT_EQ(first.Wait(Soon()), Outcome::kSuccess);
  }
  // Loads nothing but connection information.
  Outcome LoadInfo(const std::string& name, const std::string& info) {
    return agent_->engine().LoadConnectionInfo(name, info);
  }
  // Notifies this agent until that fails, as it does once the connection was refused.
  Outcome RefusalOf(StandInAgent* outsider) {
    const Deadline end = Soon();
    Outcome outcome = Outcome::kSuccess;
    while (outcome == Outcome::kSuccess && !end.expired()) {
      outcome = outsider->engine().Notify(kOwnName, "forged");
      std::this_thread::yield();
    }
    return outcome;
  }
  std::string OwnInfo() {
    std::string info;
    EXPECT_EQ(agent_->engine().ConnectionInfo(info), Outcome::kSuccess);
    return info;
  }
};

TEST_F(NixlFaultsTest, MetadataThatIsGarbageOrCutOrOfAnotherVersionIsRefused) {
  Begin(kSmallBytes);
  const std::string info = OwnInfo();
  EXPECT_EQ(LoadInfo("other", "garbage"), Outcome::kMismatch);
  EXPECT_EQ(LoadInfo("other", ""), Outcome::kMismatch);
  for (std::size_t bytes = 0; bytes < info.size(); ++bytes) {
    EXPECT_EQ(LoadInfo("other", info.substr(0, bytes)), Outcome::kMismatch) << bytes;
  }
  std::string newer = info;
  ++newer[4];
  EXPECT_EQ(LoadInfo("other", newer), Outcome::kMismatch);
  abi::BlobDescriptor blob = agent_->loaded().front();
  abi::Metadata* metadata = nullptr;
  const auto load = [&](const abi::BlobDescriptor& what) {
    return agent_->engine().LoadRemoteMetadata(what, abi::Memory::kDram, kPeerName, metadata);
  };
  for (std::size_t bytes = 0; bytes < blob.blob.size(); ++bytes) {
    EXPECT_EQ(load({blob.at, blob.blob.substr(0, bytes)}), Outcome::kMismatch) << bytes;
  }
  blob.at.length += 1;
  EXPECT_EQ(load(blob), Outcome::kMismatch);
  // The agent lives on.
  auto transfer = Prepare(Direction::kWrite, kSmallBytes);
  ASSERT_GE(static_cast<int>(transfer.Post()), 0);
  EXPECT_EQ(transfer.Wait(Soon()), Outcome::kSuccess);
}

TEST_F(NixlFaultsTest, DescriptorsOutsideOfRegisteredMemoryAreRefused) {
  Begin(kSmallBytes);
  const Range own = Own(kSmallBytes - 8, 16);
  const Range peers = Peers(0, 16);
  Outcome outcome{};
  auto transfer = agent_->Prepare(Direction::kWrite, {&own, 1}, {&peers, 1}, kPeerName, &outcome);
  EXPECT_EQ(outcome, Outcome::kInvalidParam);
  const Range mine = Own(0, 16);
  const Range beyond = Peers(kSmallBytes - 8, 16);
  auto other = agent_->Prepare(Direction::kRead, {&mine, 1}, {&beyond, 1}, kPeerName, &outcome);
  EXPECT_EQ(outcome, Outcome::kInvalidParam);
}

TEST_F(NixlFaultsTest, APeerThatIsKilledInTheMiddleDisconnectsAndItsNameMayComeBack) {
  for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
    BeginPaced();
    auto transfer = Prepare(direction, kLargeBytes);
    ASSERT_GE(static_cast<int>(transfer.Post("end")), 0);
    peer_->Kill();
    EXPECT_EQ(EndOf(&transfer), Outcome::kRemoteDisconnect);
    EXPECT_EQ(transfer.Post(), Outcome::kRemoteDisconnect);
    agent_->Forget(kPeerName);
    transfer.Release(Soon());
    peer_ = tests::Must(tests::PeerProcess::Start(kAgentRole));
    (void)Ask("create");
    peer_address_ = std::stoull(Ask(fmt::format("memory {} {}", kLargeBytes, kPeerSeed)));
    ASSERT_EQ(agent_->Load(Ask("metadata")), Outcome::kSuccess);
    auto again = Prepare(direction, kSmallBytes);
    ASSERT_GE(static_cast<int>(again.Post("again")), 0);
    EXPECT_EQ(again.Wait(Soon()), Outcome::kSuccess);
    again.Release(Soon());
    agent_.reset();
  }
}

TEST_F(NixlFaultsTest, APeerThatIsStoppedInTheMiddleDisconnects) {
  for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
    BeginPaced();
    auto transfer = Prepare(direction, kLargeBytes);
    ASSERT_GE(static_cast<int>(transfer.Post("end")), 0);
    tests::MustDo(peer_->Stop(Soon()));
    EXPECT_EQ(EndOf(&transfer), Outcome::kRemoteDisconnect);
    peer_->Continue();
    transfer.Release(Soon());
    agent_.reset();
  }
}

// Its kernel still accepts connections, so only time tells. connect_timeout has its default, which
// is longer.
TEST_F(NixlFaultsTest, APeerThatIsStoppedBeforeItIsConnectedDisconnects) {
  Start(kSmallBytes);
  const std::string metadata = Ask("metadata");
  tests::MustDo(peer_->Stop(Soon()));
  ASSERT_EQ(agent_->Load(metadata), Outcome::kSuccess);
  for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
    auto transfer = Prepare(direction, kSmallBytes);
    ASSERT_GE(static_cast<int>(transfer.Post("end")), 0);
    EXPECT_EQ(EndOf(&transfer), Outcome::kRemoteDisconnect);
  }
  // Its metadata is still loaded, so the next transfer connects.
  peer_->Continue();
  auto transfer = Prepare(Direction::kWrite, kSmallBytes);
  ASSERT_GE(static_cast<int>(transfer.Post("end")), 0);
  EXPECT_EQ(transfer.Wait(Soon()), Outcome::kSuccess);
}

TEST_F(NixlFaultsTest, DeregistrationEndsTheTransfersThatUseTheMemory) {
  BeginPaced();
  auto transfer = Prepare(Direction::kWrite, kLargeBytes);
  ASSERT_GE(static_cast<int>(transfer.Post("end")), 0);
  agent_->Deregister(memory_);
  EXPECT_EQ(transfer.Wait(Soon()), Outcome::kCanceled);
}

TEST_F(NixlFaultsTest, AReadOfMemoryThatThePeerDeregistersFails) {
  BeginPaced();
  auto transfer = Prepare(Direction::kRead, kLargeBytes);
  ASSERT_GE(static_cast<int>(transfer.Post("end")), 0);
  ASSERT_EQ(Ask(fmt::format("deregister 0 {}", kLargeBytes)), "ok");
  EXPECT_LT(static_cast<int>(transfer.Wait(Soon())), 0);
}

TEST_F(NixlFaultsTest, ATransferInFlightIsReleasedWithoutBlocking) {
  BeginPaced();
  auto transfer = Prepare(Direction::kWrite, kLargeBytes);
  ASSERT_GE(static_cast<int>(transfer.Post("end")), 0);
  const tests::Stopwatch watch;
  (void)agent_->engine().Check(transfer.request);
  transfer.Release(Soon());
  EXPECT_LE(watch.elapsed(), tests::kDrainGrace + tests::kSlack);
}

TEST_F(NixlFaultsTest, DisconnectingEndsTransfersAndTheirHandlesAreReleasedLater) {
  BeginPaced();
  auto transfer = Prepare(Direction::kWrite, kLargeBytes);
  ASSERT_GE(static_cast<int>(transfer.Post("end")), 0);
  agent_->Forget(kPeerName);
  EXPECT_LT(static_cast<int>(transfer.Wait(Soon())), 0);
  transfer.Release(Soon());
  Outcome outcome{};
  std::vector<Range> none;
  auto other = agent_->Prepare(Direction::kWrite, none, none, kPeerName, &outcome);
  EXPECT_EQ(outcome, Outcome::kInvalidParam);
  EXPECT_LT(static_cast<int>(agent_->engine().Notify(kPeerName, "x")), 0);
}

TEST_F(NixlFaultsTest, WhoDoesNotHaveTheMetadataCannotNotify) {
  Begin(kSmallBytes);
  auto info = tests::Must(ConnectionInfo::Parse(OwnInfo()));
  StandInAgent guesser("guesser", FastParams());
  info.secret = Uuid::Random();
  ASSERT_EQ(guesser.engine().LoadConnectionInfo(kOwnName, info.Serialize()), Outcome::kSuccess);
  (void)guesser.engine().Notify(kOwnName, "forged");
  ASSERT_EQ(Ask(fmt::format("notify {} 4 1", kOwnName)), "ok");
  const auto arrived = agent_->Await(1, Soon());
  ASSERT_EQ(arrived.size(), 1U);
  EXPECT_EQ(arrived[0].first, kPeerName);
  EXPECT_TRUE(agent_->Await(1, Deadline::After(milliseconds(0))).empty());
}

TEST_F(NixlFaultsTest, WhoDoesNotHaveTheMetadataIsTold) {
  Begin(kSmallBytes);
  auto info = tests::Must(ConnectionInfo::Parse(OwnInfo()));
  info.secret = Uuid::Random();
  ::testing::internal::CaptureStderr();
  {
    StandInAgent guesser("guesser", FastParams());
    ASSERT_EQ(guesser.engine().LoadConnectionInfo(kOwnName, info.Serialize()), Outcome::kSuccess);
    EXPECT_EQ(RefusalOf(&guesser), Outcome::kRemoteDisconnect);
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("FERRY: cannot connect to agent 'tested'"));
  EXPECT_THAT(log, HasSubstr("different secrets"));
  EXPECT_THAT(log, HasSubstr("if that agent was restarted, load its new metadata"));
}

TEST_F(NixlFaultsTest, AnAgentThatIsLoadedByAnotherNameRefusesAndTellsWhy) {
  Begin(kSmallBytes);
  StandInAgent other("other", FastParams());
  ASSERT_EQ(other.engine().LoadConnectionInfo("mistaken", OwnInfo()), Outcome::kSuccess);
  ::testing::internal::CaptureStderr();
  const Deadline end = Soon();
  while (other.engine().Notify("mistaken", "lost") == Outcome::kSuccess && !end.expired()) {
    std::this_thread::yield();
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("FERRY: cannot connect to agent 'mistaken'"));
  EXPECT_THAT(log, HasSubstr("agent 'tested' is not proved to be 'other'"));
}

TEST_F(NixlFaultsTest, PeersWithoutMetadataHoldNoPlaceThatAgentsNeed) {
  // Whoever needed `insecure` in the past may leave it set.
  Start(kSmallBytes, FastParams({{"max_connections", "1"}, {"insecure", "on"}}));
  const auto info = tests::Must(ConnectionInfo::Parse(OwnInfo()));
  Config config;
  config.devices = DeviceChoice::None();
  auto endpoint = tests::Must(transfer::Endpoint::Create(config));
  for (int i = 0; i < 8; ++i) {
    const auto outsider = endpoint.Connect(info.address, Soon());
    ASSERT_FALSE(outsider);
    EXPECT_EQ(outsider.error().code(), Code::kRefused) << outsider.error().ToString();
  }
  ASSERT_EQ(agent_->Load(Ask("metadata")), Outcome::kSuccess);
  ASSERT_EQ(Ask("load " + agent_->Metadata()), "0");
  ASSERT_EQ(Ask(fmt::format("notify {} 4 1", kOwnName)), "ok");
  EXPECT_EQ(agent_->Await(1, Soon()).size(), 1U);
}

TEST_F(NixlFaultsTest, TheSecretOfTheSettingsIsProvedAsWell) {
  for (const char* const tls : {"off", "psk"}) {
    Begin(kSmallBytes, FastParams({{"secret", "the-secret-of-these-agents"}, {"tls", tls}}));
    auto transfer = Prepare(Direction::kWrite, kSmallBytes);
    ASSERT_GE(static_cast<int>(transfer.Post("written")), 0);
    ASSERT_EQ(transfer.Wait(Soon()), Outcome::kSuccess);
    EXPECT_EQ(PeerDigest(), DigestOf(memory_));
    StandInAgent outsider("outsider",
                          FastParams({{"secret", "the-secret-of-other-agents"}, {"tls", tls}}));
    ASSERT_EQ(outsider.engine().LoadConnectionInfo(kOwnName, OwnInfo()), Outcome::kSuccess);
    EXPECT_EQ(RefusalOf(&outsider), Outcome::kRemoteDisconnect) << tls;
    transfer.Release(Soon());
    agent_.reset();
  }
}

TEST_F(NixlFaultsTest, AnAgentThatClaimsALoadedNameIsNotHeard) {
  Begin(kSmallBytes);
  StandInAgent impostor(kPeerName, FastParams());
  ASSERT_EQ(impostor.engine().LoadConnectionInfo(kOwnName, OwnInfo()), Outcome::kSuccess);
  ASSERT_EQ(impostor.engine().Notify(kOwnName, "forged"), Outcome::kSuccess);
  ASSERT_EQ(Ask(fmt::format("notify {} 4 1", kOwnName)), "ok");
  const auto arrived = agent_->Await(1, Soon());
  ASSERT_EQ(arrived.size(), 1U);
  EXPECT_EQ(arrived[0].second, Text(0, 4));
  EXPECT_TRUE(agent_->Await(1, Deadline::After(milliseconds(0))).empty());
}

TEST_F(NixlFaultsTest, AnAgentThatWasRestartedIsHeardOnceItsMetadataIsReplaced) {
  Begin(kSmallBytes);
  ASSERT_EQ(Ask(fmt::format("notify {} 4 1", kOwnName)), "ok");
  ASSERT_EQ(agent_->Await(1, Soon()).size(), 1U);
  peer_->Kill();
  peer_ = tests::Must(tests::PeerProcess::Start(kAgentRole));
  (void)Ask("create listen_host=127.0.0.1");
  (void)Ask(fmt::format("memory {} {}", kSmallBytes, kPeerSeed));
  // It dials before its metadata is loaded here.
  ASSERT_EQ(Ask("load " + agent_->Metadata()), "0");
  ASSERT_EQ(Ask(fmt::format("notify {} 4 1", kOwnName)), "ok");
  agent_->Forget(kPeerName);
  ASSERT_EQ(agent_->Load(Ask("metadata")), Outcome::kSuccess);
  EXPECT_EQ(agent_->Await(1, Soon()).size(), 1U);
}

TEST_F(NixlFaultsTest, AThousandPeersOfWhichSixteenLiveAreServed) {
  Begin(kSmallBytes);
  auto dead = tests::Must(ConnectionInfo::Parse(OwnInfo()));
  {
    // Nobody listens at its address any more.
    Config config;
    config.devices = DeviceChoice::None();
    auto endpoint = tests::Must(transfer::Endpoint::Create(config));
    dead.address = endpoint.address();
  }
  std::vector<std::unique_ptr<StandInAgent>> others;
  for (int i = 0; i < 1000; ++i) {
    const std::string name = fmt::format("agent{}", i);
    if (i % 64 != 63) {
      dead.secret = Uuid::Random();
      ASSERT_EQ(LoadInfo(name, dead.Serialize()), Outcome::kSuccess);
      continue;
    }
    others.push_back(std::make_unique<StandInAgent>(name, FastParams({{"workers", "1"}})));
    ASSERT_EQ(agent_->Load(others.back()->Metadata()), Outcome::kSuccess);
  }
  for (const auto& other : others) {
    ASSERT_EQ(agent_->engine().Notify(other->name(), "alive"), Outcome::kSuccess);
  }
  for (const auto& other : others) EXPECT_EQ(other->Await(1, Soon()).size(), 1U);
  auto transfer = Prepare(Direction::kWrite, kSmallBytes);
  ASSERT_GE(static_cast<int>(transfer.Post()), 0);
  EXPECT_EQ(transfer.Wait(Soon()), Outcome::kSuccess);
}

TEST_F(NixlFaultsTest, TheSameNameWithOtherMetadataIsTheOtherAgent) {
  Begin(kSmallBytes);
  StandInAgent other(kPeerName, FastParams());
  ASSERT_EQ(agent_->Load(other.Metadata()), Outcome::kSuccess);
  ASSERT_EQ(agent_->engine().Notify(kPeerName, "which"), Outcome::kSuccess);
  EXPECT_EQ(other.Await(1, Soon()).size(), 1U);
}

}  // namespace
}  // namespace ferry::nixl::testing
