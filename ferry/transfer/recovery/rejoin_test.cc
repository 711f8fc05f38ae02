// Tests replacement of lanes that the network has dropped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "ferry/net/testing/fake_provider.h"
#include "ferry/transfer/handshake/wire.h"
#include "ferry/transfer/testing/linked_endpoints.h"
#include "ferry/transfer/testing/traffic.h"

// Lanes that the network drops, and their replacements.
namespace ferry::transfer {
namespace {

using net::FakeFaults;
using net::FakeNetwork;
using ::testing::HasSubstr;

constexpr std::size_t kRejoinLanes = 3;

class RejoinTest : public ::testing::Test {
 protected:
  RejoinTest() {
    config_ = SmallSlices(kRejoinLanes, 2);
    config_.eager_bytes = 8 * 1024;
    config_.listen_host.clear();
    config_.insecure = OnOff::kOn;
  }

  // Over `interfaces` network paths; `near` dials over the first of them. `secret`: the far side's
  // own.
  Link NewLink(std::size_t interfaces = 1, const SecretText& secret = {}) {
    network_.SetInterfaces(interfaces);
    FakeFaults far_away;
    far_away.another_machine = interfaces > 1;
    network_.SetFaults(far_away);
    first_ = network_.connections();
    Link link{
        {Must(Endpoint::Create(near_config_.value_or(config_), network_.CreateProvider())), {}},
        {Must(Endpoint::Create(config_, network_.CreateProvider(), secret)), {}}};
    const EndpointAddress address{link.far.endpoint->id(),
                                  {{FakeNetwork::kHost, link.far.endpoint->port()}}};
    link.near.connection = Must(link.near.endpoint->Connect(address, Soon(), secret));
    link.far.connection = Must(link.far.endpoint->Accept(Soon()));
    return link;
  }

  // Interfaces of a side's lanes.
  static std::multiset<std::string> InterfacesOf(const Connection& connection) {
    std::multiset<std::string> found;
    for (const net::LaneInfo& lane : connection.Info().lanes) found.insert(lane.interface);
    return found;
  }
  using Interfaces = std::multiset<std::string>;

  // Runs both sides' home loops until the interfaces of their lanes satisfy `wanted`.
  template <class Predicate>
  static ::testing::AssertionResult Await(Link* link, Predicate wanted) {
    const Deadline deadline = Soon();
    while (!wanted(InterfacesOf(*link->near.connection)) ||
           !wanted(InterfacesOf(*link->far.connection))) {
      if (deadline.expired()) {
        auto failure = ::testing::AssertionFailure();
        for (const auto& name : InterfacesOf(*link->near.connection)) failure << name << ' ';
        return failure;
      }
      for (Side* side : {&link->near, &link->far}) {
        (void)side->connection->TakeNotification(Deadline::After(milliseconds(1)));
      }
    }
    return ::testing::AssertionSuccess();
  }
  static ::testing::AssertionResult MovesTo(Link* link, const Interfaces& wanted) {
    return Await(link, [&](const Interfaces& used) { return used == wanted; });
  }
  static ::testing::AssertionResult Leaves(Link* link, const std::string& interface) {
    return Await(link, [&](const Interfaces& used) { return used.count(interface) == 0; });
  }

  // Runs the near side's home loop until this many lanes were replaced.
  static ::testing::AssertionResult HasReplaced(Link* link, std::uint64_t lanes) {
    const Deadline deadline = Soon();
    while (link->near.connection->Counters().traffic.lanes_replaced < lanes) {
      if (deadline.expired()) return ::testing::AssertionFailure() << "not in time";
      const auto note = link->near.connection->TakeNotification(Deadline::After(milliseconds(1)));
      if (!note && note.error().code() == Code::kPeerLost) {
        return ::testing::AssertionFailure() << note.error().ToString();
      }
    }
    return ::testing::AssertionSuccess();
  }

  FakeNetwork network_;
  Config config_;                      // config of both sides
  std::optional<Config> near_config_;  // the near side's, if it differs
  std::size_t first_ = 0;              // index of the network's first connection of the latest link
};

TEST_F(RejoinTest, LanesThatAreResetInTheMiddleAreReplacedAndEverythingArrivesOnce) {
  std::mt19937 random(8);
  for (int round = 0; round < 40; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    Link link = NewLink();
    network_.SetFaults({.seed = random(), .piece_bytes = 1 + random() % 5000});
    Traffic traffic(&link);
    traffic.Begin();
    const std::size_t lane = random() % kRejoinLanes;
    const std::uint64_t at = random() % 100'000;
    const Deadline deadline = Soon();
    while (network_.BytesSent(first_ + lane, net::FakeDirection::kToListener) < at &&
           !traffic.over() && !deadline.expired()) {
    }
    round % 2 == 0 ? network_.Reset(first_ + lane) : network_.Unreach(first_ + lane);
    traffic.ExpectAllWell();
    EXPECT_TRUE(traffic.GuardsIntact());
    EXPECT_TRUE(Works(&link));
  }
}

TEST_F(RejoinTest, MessagesKeepTheirOrderWhenTheirLaneIsLostAgainAndAgain) {
  Link link = NewLink();
  network_.SetFaults({.piece_bytes = 700});
  constexpr int kMessages = 400;
  std::vector<std::vector<std::byte>> sent;
  std::vector<std::vector<std::byte>> got(kMessages, std::vector<std::byte>(9000));
  std::vector<Operation> receives;
  std::vector<Operation> sends;
  for (int i = 0; i < kMessages; ++i) {
    sent.push_back(RandomBytes(static_cast<std::size_t>(i * 37 % 9000), static_cast<unsigned>(i)));
  }
  for (int i = 0; i < kMessages; ++i) {
    sends.push_back(Must(link.near.connection->Send(7, sent[static_cast<std::size_t>(i)])));
    receives.push_back(
        Must(link.far.connection->Recv(7, kWholeTag, got[static_cast<std::size_t>(i)])));
    ASSERT_TRUE(link.near.connection->Notify(BytesOf(std::to_string(i))));
    if (i % 50 == 49) network_.Reset(network_.connections() - 1);
    if (i == 20) network_.Reset(first_);
  }
  for (std::size_t i = 0; i < kMessages; ++i) {
    SCOPED_TRACE("message " + std::to_string(i));
    ASSERT_TRUE(EndsOk(sends[i]));
    ASSERT_TRUE(EndsOk(receives[i]));
    got[i].resize(receives[i].bytes());
    ASSERT_EQ(got[i], sent[i]);
    EXPECT_EQ(TextOf(Must(link.far.connection->TakeNotification(Soon()))), std::to_string(i));
  }
  EXPECT_FALSE(link.far.connection->TakeNotification(Now()));
}

TEST_F(RejoinTest, LanesSpreadOverTheInterfacesThatThePeerNames) {
  Link link = NewLink(3);
  EXPECT_TRUE(MovesTo(&link, {"fake", "fake1", "fake2"}));
  EXPECT_TRUE(Works(&link));
}

TEST_F(RejoinTest, InterfacesThatEitherSideLeavesOutAreNotUsed) {
  config_.interfaces = "^fake1";
  Link link = NewLink(3);
  EXPECT_TRUE(MovesTo(&link, {"fake", "fake", "fake2"}));
}

TEST_F(RejoinTest, APeerOnlyReachedByAnInterfaceThatIsLeftOutIsNotConnectedTo) {
  config_.interfaces = "eth0";
  network_.SetFaults({.another_machine = true});
  const Endpoint far = Must(Endpoint::Create(config_, network_.CreateProvider()));
  Endpoint near = Must(Endpoint::Create(config_, network_.CreateProvider()));
  const auto refused = near.Connect({far.id(), {{FakeNetwork::kHost, far.port()}}}, Soon());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.error().message(), HasSubstr("leaves by fake, which FERRY_INTERFACES=eth0"));
}

TEST_F(RejoinTest, LanesOfALinkThatGoesDownMoveToOthersAndBackWhenItReturns) {
  // A lane that works elsewhere retries its own path at a heartbeat, when an attempt that began
  // before the link returned has failed.
  config_.heartbeat_interval = milliseconds(200);
  Link link = NewLink(3);
  ASSERT_TRUE(MovesTo(&link, {"fake", "fake1", "fake2"}));
  for (int round = 0; round < 3; ++round) {
    Traffic traffic(&link);
    traffic.Begin();
    network_.SetLink("fake1", /*up=*/false, /*announce=*/true);
    traffic.ExpectAllWell();
    EXPECT_TRUE(Leaves(&link, "fake1"));
    EXPECT_TRUE(Works(&link));
    network_.SetLink("fake1", /*up=*/true, /*announce=*/true);
    EXPECT_TRUE(MovesTo(&link, {"fake", "fake1", "fake2"}));
    EXPECT_TRUE(traffic.GuardsIntact());
  }
}

TEST_F(RejoinTest, LanesOfTheFirstLinkMoveTooMessagesAndAll) {
  Link link = NewLink(2);
  ASSERT_TRUE(MovesTo(&link, {"fake", "fake", "fake1"}));
  Traffic traffic(&link);
  traffic.Begin();
  network_.SetLink(FakeNetwork::kHost, /*up=*/false, /*announce=*/true);
  traffic.ExpectAllWell();
  EXPECT_TRUE(MovesTo(&link, {"fake1", "fake1", "fake1"}));
  EXPECT_TRUE(Works(&link));
}

TEST_F(RejoinTest, ALinkThatSwallowsEverythingIsNoticedByItsSilence) {
  config_.heartbeat_interval = milliseconds(20);
  config_.lane_timeout = milliseconds(100);
  config_.peer_timeout = std::chrono::seconds(60);
  Link link = NewLink(3);
  ASSERT_TRUE(MovesTo(&link, {"fake", "fake1", "fake2"}));
  Traffic traffic(&link);
  traffic.Begin();
  network_.SetLink("fake2", /*up=*/false, /*announce=*/false);
  traffic.ExpectAllWell();
  EXPECT_TRUE(Works(&link));
  network_.SetLink("fake2", /*up=*/true, /*announce=*/false);
  EXPECT_TRUE(MovesTo(&link, {"fake", "fake1", "fake2"}));
}

TEST_F(RejoinTest, APeerThatNoLinkReachesIsLostWithinItsTimeout) {
  config_.heartbeat_interval = milliseconds(20);
  config_.lane_timeout = milliseconds(60);
  config_.peer_timeout = std::chrono::seconds(1);
  Link link = NewLink(2);
  Traffic traffic(&link);
  traffic.Begin();
  for (const char* host : {"fake", "fake1"}) network_.SetLink(host, false, /*announce=*/true);
  traffic.ExpectAllEnd();
  EXPECT_TRUE(IsLostSoon(link.near.connection) && IsLostSoon(link.far.connection));
}

// Number of bytes that a replacement lane has carried when its first frame, a ping after the two
// handshake frames, has arrived.
constexpr std::uint64_t FirstWholeFrame(bool to_listener) {
  constexpr std::uint64_t kEmptyFrame = net::kFakePrefixBytes + sizeof(wire::MessageHeader);
  return 3 * kEmptyFrame + sizeof(wire::ResumeBody) + (to_listener ? sizeof(wire::RejoinBody) : 0);
}

TEST_F(RejoinTest, AReplacementThatIsCutAtAnyByteIsTriedAgain) {
  config_.drain_grace = milliseconds(200);
  for (const bool to_listener : {true, false}) {
    for (std::uint64_t at = 0; at <= 200; at += 8) {
      SCOPED_TRACE((to_listener ? "to listener " : "to connector ") + std::to_string(at));
      Link link = NewLink();
      FakeFaults faults;
      (to_listener ? faults.cut_to_listener : faults.cut_to_connector) = at;
      network_.SetFaults(first_ + kRejoinLanes, faults);
      Traffic traffic(&link);
      traffic.Begin();
      network_.Reset(first_ + 1);
      // A cut counts as an orderly close by the peer once a frame has arrived over the lane, and
      // not before.
      at < FirstWholeFrame(to_listener) ? traffic.ExpectAllWell() : traffic.ExpectAllEnd();
      EXPECT_TRUE(traffic.GuardsIntact());
    }
  }
}

TEST_F(RejoinTest, AReplacementThatIsGivenUpForTakingTooLongIsTriedAgain) {
  near_config_ = config_;
  near_config_->handshake_timeout = milliseconds(60);
  for (unsigned round = 0; round < 40; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    Link link = NewLink();
    // Its answers may arrive after the near side has stopped waiting, while the far side relies on
    // it.
    network_.SetFaults(first_ + kRejoinLanes, {.seed = round, .delay = milliseconds(40)});
    Traffic traffic(&link);
    traffic.Begin();
    network_.Reset(first_ + 1);
    traffic.ExpectAllWell();
    EXPECT_TRUE(HasReplaced(&link, 1));
    EXPECT_TRUE(Works(&link));
  }
}

TEST_F(RejoinTest, ALaneThatWasSilentAndIsThenLostGoesOnByTheWayThatItHad) {
  config_.heartbeat_interval = milliseconds(20);
  config_.lane_timeout = milliseconds(60);
  config_.handshake_timeout = milliseconds(200);
  network_.SetLink("fake1", /*up=*/false, /*announce=*/false);
  Link link = NewLink(2);
  FakeFaults silent;
  silent.another_machine = silent.black_hole = true;
  network_.SetFaults(first_ + 1, silent);
  const Deadline deadline = Soon();
  while (link.near.connection->Counters().traffic.lane_stalls == 0 && !deadline.expired()) {
    (void)link.near.connection->TakeNotification(Deadline::After(milliseconds(1)));
  }
  network_.Unreach(first_ + 1);
  EXPECT_TRUE(HasReplaced(&link, 1));
  EXPECT_TRUE(Works(&link));
}

TEST_F(RejoinTest, OperationsEndThoughALaneCanNeverBeReplaced) {
  config_.heartbeat_interval = milliseconds(20);
  config_.lane_timeout = milliseconds(60);
  config_.peer_timeout = std::chrono::seconds(1);
  Link link = NewLink();
  network_.SetFaults(first_ + 1, {.black_hole = true});
  Traffic traffic(&link);
  traffic.Begin();
  const Deadline deadline = Soon();
  while (network_.BytesSent(first_ + 1, net::FakeDirection::kToListener) < 10'000 &&
         !deadline.expired()) {
  }
  network_.SetAnswer(net::FakeAnswer::kRefuse);
  network_.Unreach(first_ + 1);
  traffic.ExpectAllEnd();
}

TEST_F(RejoinTest, AnOperationBegunWithoutLanesGoesOverWhicheverComesBackFirst) {
  config_.handshake_timeout = std::chrono::minutes(2);
  Link link = NewLink();
  GuardedMemory here(100, 1);
  GuardedMemory there(100, 2);
  const Region local = Must(link.near.endpoint->Register(here.span(), Rights::kNone));
  const Region target = Must(link.far.endpoint->Register(there.span(), Rights::kReadWrite));
  network_.SetAnswer(net::FakeAnswer::kRefuse);
  for (std::size_t i = 0; i < kRejoinLanes; ++i) network_.Unreach(first_ + i);
  const auto lanes_up = [&] {
    const auto lanes = link.near.connection->Counters().lanes;
    return std::count_if(lanes.begin(), lanes.end(), [](const auto& lane) { return lane.up; });
  };
  const Deadline deadline = Soon();
  while (lanes_up() > 0 && !deadline.expired()) {
    (void)link.near.connection->TakeNotification(Deadline::After(milliseconds(1)));
  }
  const auto write = link.near.connection->Write(local, 0, target.remote(), 0, 100);
  // It waits for the first two, which are dialed first and never answered.
  const std::size_t next = network_.connections();
  for (std::size_t i = 0; i < 2; ++i) network_.SetFaults(next + i, {.black_hole = true});
  network_.SetAnswer(net::FakeAnswer::kAccept);
  EXPECT_TRUE(EndsOk(write));
  EXPECT_EQ(lanes_up(), 1);
  EXPECT_EQ(there.Copy(), here.Copy());
}

TEST_F(RejoinTest, ReplacementsProveThatTheyKnowTheSecret) {
  config_.secret = "a secret of the two of them";
  Link link = NewLink(2);
  ASSERT_TRUE(MovesTo(&link, {"fake", "fake", "fake1"}));
  network_.Reset(first_ + 1);
  EXPECT_TRUE(Works(&link));
}

TEST_F(RejoinTest, ReplacementsProveTheSecretThatThePeerWasDialedWith) {
  config_.insecure = OnOff::kOff;
  for (const char* const secret : {"", "a secret of the two of them"}) {
    config_.secret = secret;
    Link link = NewLink(2, "the secret of the far side");
    ASSERT_TRUE(MovesTo(&link, {"fake", "fake", "fake1"}));
    network_.Reset(first_ + 1);
    EXPECT_TRUE(Works(&link));
  }
}

TEST_F(RejoinTest, AnEndpointMayGoWhileItsLanesAreBeingReplaced) {
  // A lane that is being replaced then cannot be seen to be reset; the peer is lost all the same.
  config_.heartbeat_interval = milliseconds(50);
  config_.lane_timeout = milliseconds(200);
  for (int round = 0; round < 20; ++round) {
    Link link = NewLink(3);
    Traffic traffic(&link);
    traffic.Begin();
    network_.Reset(first_ + static_cast<std::size_t>(round) % kRejoinLanes);
    (round % 2 == 0 ? link.near : link.far).endpoint.reset();
    traffic.ExpectAllEnd();
    EXPECT_TRUE(traffic.GuardsIntact());
  }
}

TEST_F(RejoinTest, CancelledOperationsEndWhileTheirLaneIsBeingReplaced) {
  Link link = NewLink();
  Traffic traffic(&link);
  traffic.Begin();
  network_.Reset(first_ + 1);
  traffic.CancelAll();
  traffic.ExpectAllEnd();
  EXPECT_TRUE(traffic.GuardsIntact());
}

// A write of which a part is in flight on the lane that `faults` apply to; it cannot end.
class HeldWrite {
 public:
  HeldWrite(Link* link, FakeNetwork* network, std::size_t lane)
      : local_(Must(link->near.endpoint->Register(here_.span(), Rights::kNone))),
        target_(Must(link->far.endpoint->Register(there_.span(), Rights::kReadWrite))) {
    network->SetFaults(lane, {.black_hole = true});
    const auto sent = [&] { return network->BytesSent(lane, net::FakeDirection::kToListener); };
    const std::uint64_t before = sent();
    // On a busy machine the other lanes may carry all of it.
    const Deadline deadline = Soon();
    while (sent() < before + kPartBytes && !deadline.expired()) {
      if (operation_ && !operation_->Wait(Deadline::After(milliseconds(1)))) continue;
      operation_ = Must(link->near.connection->Write(local_, 0, target_.remote(), 0, kHeldBytes));
    }
  }
  Operation& operation() { return *operation_; }

 private:
  static constexpr std::size_t kHeldBytes = 4 << 20;
  static constexpr std::size_t kPartBytes = 1024;  // of a slice; more than frames without payload
  GuardedMemory here_{kHeldBytes, 1};
  GuardedMemory there_{kHeldBytes, 2};
  Region local_;
  Region target_;
  std::optional<Operation> operation_;
};

TEST_F(RejoinTest, ACancelWhileALaneIsDownWaitsForTheNextOneAndTheConnectionLives) {
  config_.drain_grace = milliseconds(500);
  Link link = NewLink();
  HeldWrite write(&link, &network_, first_ + 1);
  network_.SetAnswer(net::FakeAnswer::kRefuse);
  network_.Unreach(first_ + 1);
  write.operation().Cancel();
  const Status not_yet = write.operation().Wait(Deadline::After(3 * config_.drain_grace));
  EXPECT_FALSE(write.operation().Poll()) << not_yet.error().ToString();
  network_.SetAnswer(net::FakeAnswer::kAccept);
  EXPECT_TRUE(EndsWith(Code::kCancelled, write.operation()));
  EXPECT_TRUE(Works(&link));
}

TEST_F(RejoinTest, ACancelWhileOneLaneOfSeveralIsSilentDoesNotCostTheConnection) {
  config_.drain_grace = milliseconds(500);
  Link link = NewLink();
  HeldWrite write(&link, &network_, first_ + 1);
  write.operation().Cancel();
  const Status not_yet = write.operation().Wait(Deadline::After(3 * config_.drain_grace));
  EXPECT_FALSE(write.operation().Poll()) << not_yet.error().ToString();
  network_.Unreach(first_ + 1);
  EXPECT_TRUE(EndsWith(Code::kCancelled, write.operation()));
  EXPECT_TRUE(Works(&link));
}

TEST_F(RejoinTest, ACancelWhileEveryLaneIsSilentEndsAfterTheGrace) {
  config_.drain_grace = milliseconds(50);
  Link link = NewLink();
  network_.SetFaults({.black_hole = true});
  HeldWrite write(&link, &network_, first_ + 1);
  write.operation().Cancel();
  EXPECT_TRUE(EndsWith(Code::kCancelled, write.operation()));
  EXPECT_TRUE(IsLostSoon(link.near.connection));
}

TEST_F(RejoinTest, MemoryThatALostLaneHasAnsweredFromIsLetGoAndTheConnectionLives) {
  config_.drain_grace = std::chrono::seconds(5);
  Link link = NewLink();
  constexpr std::size_t kBytes = 4 << 20;
  GuardedMemory given(kBytes, 1);
  GuardedMemory fetched(kBytes, 2);
  Region source = Must(link.far.endpoint->Register(given.span(), Rights::kRead));
  const Region into = Must(link.near.endpoint->Register(fetched.span(), Rights::kNone));
  // Answers are received, and so acknowledged, byte by byte.
  network_.SetFaults(first_ + 1, {.piece_bytes = 1});
  const std::uint64_t before = network_.BytesSent(first_ + 1, net::FakeDirection::kToConnector);
  Operation read = Must(link.near.connection->Read(into, 0, source.remote(), 0, kBytes));
  const Deadline deadline = Soon();
  while (network_.BytesSent(first_ + 1, net::FakeDirection::kToConnector) < before + 4096 &&
         !deadline.expired()) {
  }
  network_.SetAnswer(net::FakeAnswer::kRefuse);
  network_.Unreach(first_ + 1);
  EXPECT_TRUE(source.Deregister(Soon()));
  (void)read.Wait(Soon());
  network_.SetAnswer(net::FakeAnswer::kAccept);
  EXPECT_TRUE(HasReplaced(&link, 1));
  EXPECT_TRUE(Works(&link));
}

TEST_F(RejoinTest, ALaneThatTheListeningSideHasStoppedForNothingCountsAsDownThere) {
  config_.heartbeat_interval = milliseconds(20);
  config_.handshake_timeout = milliseconds(200);
  network_.SetLink("fake1", /*up=*/false, /*announce=*/false);
  Link link = NewLink(2);
  FakeFaults cut;
  cut.another_machine = true;
  cut.cut_to_connector = 41;  // one byte after the welcome frame
  const std::size_t next = network_.connections();
  for (std::size_t i = 0; i < 200; ++i) network_.SetFaults(next + i, cut);
  network_.SetLink("fake1", /*up=*/true, /*announce=*/true);
  const Deadline deadline = Soon();
  while (link.far.connection->Counters().lanes[1].up && !deadline.expired()) {
    (void)link.near.connection->TakeNotification(Deadline::After(milliseconds(1)));
    (void)link.far.connection->TakeNotification(Deadline::After(milliseconds(1)));
  }
  EXPECT_FALSE(link.far.connection->Counters().lanes[1].up);
  network_.SetFaults({.another_machine = true});
  EXPECT_TRUE(HasReplaced(&link, 1));
  EXPECT_TRUE(Works(&link));
  EXPECT_TRUE(link.far.connection->Counters().lanes[1].up);
}

TEST_F(RejoinTest, ALaneThatComesUpByAnInterfaceThatIsLeftOutIsNotUsed) {
  config_.interfaces = "^fake7";
  Link link = NewLink();
  FakeFaults detour;
  detour.another_machine = true;
  detour.interface = "fake7";
  network_.SetFaults(first_ + kRejoinLanes, detour);
  network_.Reset(first_ + 1);
  EXPECT_TRUE(HasReplaced(&link, 1));
  EXPECT_EQ(network_.connections(), first_ + kRejoinLanes + 2);
  EXPECT_EQ(InterfacesOf(*link.near.connection).count("fake7"), 0u);
  EXPECT_TRUE(Works(&link));
}

TEST_F(RejoinTest, ALaneThatComesUpToAnotherMachineIsNotTrustedWithoutASecret) {
  near_config_ = config_;
  near_config_->insecure = OnOff::kOff;
  Link link = NewLink();
  network_.SetFaults(first_ + kRejoinLanes, {.another_machine = true});
  network_.Reset(first_ + 1);
  EXPECT_TRUE(HasReplaced(&link, 1));
  EXPECT_EQ(network_.connections(), first_ + kRejoinLanes + 2);
  EXPECT_TRUE(Works(&link));
}

TEST_F(RejoinTest, ALaneThatComesUpToAProxyIsNotTrustedWithoutASecret) {
  near_config_ = config_;
  near_config_->insecure = OnOff::kOff;
  Link link = NewLink();
  network_.SetFaults(first_ + kRejoinLanes, {.forwarded = true});
  network_.Reset(first_ + 1);
  EXPECT_TRUE(HasReplaced(&link, 1));
  EXPECT_EQ(network_.connections(), first_ + kRejoinLanes + 2);
  EXPECT_TRUE(Works(&link));
}

TEST_F(RejoinTest, ARefusalIsBelievedOnlyOfTheAddressThatWasDialled) {
  Link link = NewLink(2);
  ASSERT_TRUE(MovesTo(&link, {"fake", "fake", "fake1"}));
  for (const char* host : {"fake", "fake1"}) network_.SetLink(host, false, /*announce=*/false);
  for (std::size_t i = first_; i < network_.connections(); ++i) network_.Unreach(i);
  link.far.connection->Close();
  network_.SetLink("fake1", /*up=*/true, /*announce=*/true);
  const Deadline deadline = Soon();
  const auto refused = [&] {
    const auto events = link.near.connection->Events();
    return std::any_of(events.begin(), events.end(), [](const auto& event) {
      return event.text.find("refused the connection") != std::string::npos;
    });
  };
  while (!refused() && !link.near.connection->lost() && !deadline.expired()) {
    (void)link.near.connection->TakeNotification(Deadline::After(milliseconds(1)));
  }
  EXPECT_TRUE(refused());
  EXPECT_FALSE(link.near.connection->lost());
  network_.SetLink("fake", /*up=*/true, /*announce=*/true);
  EXPECT_TRUE(IsLostSoon(link.near.connection));
}

TEST_F(RejoinTest, RtsFramesAndCancelsWhileTheirLaneIsDownAreLimitedAndNotHeldAgainstThePeer) {
  config_.max_operations = 100;
  Link link = NewLink();
  network_.SetAnswer(net::FakeAnswer::kRefuse);
  network_.Unreach(first_);
  const auto message = RandomBytes(config_.eager_bytes + 1, 1);
  bool limited = false;
  for (int i = 0; i < 12'000; ++i) {
    Operation rts = Must(link.near.connection->Send(1, message));
    rts.Cancel();
    const Status ended = rts.Wait(Soon());
    ASSERT_FALSE(ended);
    limited = limited || ended.error().code() == Code::kUnavailable;
  }
  EXPECT_TRUE(limited);
  network_.SetAnswer(net::FakeAnswer::kAccept);
  EXPECT_TRUE(HasReplaced(&link, 1));
  EXPECT_TRUE(Works(&link));
}

}  // namespace
}  // namespace ferry::transfer
