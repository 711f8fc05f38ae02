// Tests counters, events and log lines of connections and endpoints.
#include "ferry/transfer/counters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "ferry/core/log.h"
#include "ferry/net/testing/fake_provider.h"
#include "ferry/transfer/stats/counter_aggregator.h"
#include "ferry/transfer/testing/linked_endpoints.h"
#include "ferry/transfer/testing/traffic.h"

// Counters, events and the log after various operations and failures.
namespace ferry::transfer {
namespace {

using net::FakeNetwork;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::size_t kCountedLanes = 3;
constexpr std::uint64_t kCountedBytes = 100'000;

std::uint64_t Ended(const TrafficCounters& traffic, OperationKind kind, std::size_t outcome = 0) {
  return traffic.of(kind).ended[outcome];
}
std::size_t PlaceOf(Code code) { return static_cast<std::size_t>(code); }

// Every number in `later` is at least the one in `before`.
void ExpectNoLess(const TrafficCounters& before, const TrafficCounters& later) {
  for (std::size_t kind = 0; kind < kOperationKinds; ++kind) {
    EXPECT_GE(later.operations[kind].begun, before.operations[kind].begun);
    for (std::size_t outcome = 0; outcome < kOutcomes; ++outcome) {
      EXPECT_GE(later.operations[kind].ended[outcome], before.operations[kind].ended[outcome]);
    }
  }
  EXPECT_GE(later.lanes.bytes_sent, before.lanes.bytes_sent);
  EXPECT_GE(later.lanes.bytes_received, before.lanes.bytes_received);
  EXPECT_GE(later.lanes.frames_sent, before.lanes.frames_sent);
  EXPECT_GE(later.lanes.frames_received, before.lanes.frames_received);
  EXPECT_GE(later.lanes.payload_bytes_sent, before.lanes.payload_bytes_sent);
  EXPECT_GE(later.lanes.payload_bytes_received, before.lanes.payload_bytes_received);
  EXPECT_GE(later.lanes.retries, before.lanes.retries);
  EXPECT_GE(later.lanes_lost, before.lanes_lost);
  EXPECT_GE(later.lanes_replaced, before.lanes_replaced);
  EXPECT_GE(later.refused_accesses, before.refused_accesses);
}

// Runs the side's home loop until `done` returns true.
template <class Done>
::testing::AssertionResult Until(Link* link, Done done) {
  const Deadline deadline = Soon();
  while (!done()) {
    if (deadline.expired()) return ::testing::AssertionFailure() << "did not happen";
    for (Side* side : {&link->near, &link->far}) {
      if (side->connection) {
        (void)side->connection->TakeNotification(Deadline::After(milliseconds(1)));
      }
    }
  }
  return ::testing::AssertionSuccess();
}

std::string TextsOf(const std::vector<ConnectionEvent>& events) {
  std::string all;
  for (const ConnectionEvent& event : events) all += event.text + "\n";
  return all;
}

class CountersTest : public ::testing::Test {
 protected:
  CountersTest() {
    config_ = SmallSlices(kCountedLanes, 2);
    config_.listen_host.clear();
    config_.insecure = OnOff::kOn;
  }
  ~CountersTest() override { SetLogLevel(LogLevel::kWarn); }

  Link NewLink(std::size_t interfaces = 1) {
    network_.SetInterfaces(interfaces);
    net::FakeFaults far_away;
    far_away.another_machine = interfaces > 1;
    network_.SetFaults(far_away);
    first_ = network_.connections();
    Link link{{Must(Endpoint::Create(config_, network_.CreateProvider())), {}},
              {Must(Endpoint::Create(config_, network_.CreateProvider())), {}}};
    Connect(&link);
    return link;
  }
  static void Connect(Link* link) {
    const EndpointAddress address{link->far.endpoint->id(),
                                  {{FakeNetwork::kHost, link->far.endpoint->port()}}};
    link->near.connection = Must(link->near.endpoint->Connect(address, Soon()));
    link->far.connection = Must(link->far.endpoint->Accept(Soon()));
  }

  FakeNetwork network_;
  Config config_;
  std::size_t first_ = 0;  // index of the network's first connection of the latest link
};

TEST_F(CountersTest, WritesReadsAndMessagesAreCountedOnBothSides) {
  Link link = NewLink();
  GuardedMemory here(kCountedBytes, 1);
  GuardedMemory there(kCountedBytes, 2);
  const Region local = Must(link.near.endpoint->Register(here.span(), Rights::kNone));
  const Region remote = Must(link.far.endpoint->Register(there.span(), Rights::kReadWrite));
  Connection near = *link.near.connection;
  Connection far = *link.far.connection;
  ASSERT_TRUE(EndsOk(near.Write(local, 0, remote.remote(), 0, kCountedBytes)));
  // When the operation has ended, all that this side sent is counted, and all that the peer has put
  // in place.
  EXPECT_EQ(near.Counters().traffic.lanes.payload_bytes_sent, kCountedBytes);
  EXPECT_EQ(far.Counters().traffic.lanes.payload_bytes_received, kCountedBytes);
  ASSERT_TRUE(EndsOk(near.Read(local, 0, remote.remote(), 0, kCountedBytes / 2)));
  EXPECT_EQ(near.Counters().traffic.lanes.payload_bytes_received, kCountedBytes / 2);
  EXPECT_TRUE(Until(
      &link, [&] { return far.Counters().traffic.lanes.payload_bytes_sent == kCountedBytes / 2; }));
  std::vector<std::byte> into(100);
  const auto receive = far.Recv(1, kWholeTag, into);
  ASSERT_TRUE(EndsOk(near.Send(1, here.span().first(100))));
  ASSERT_TRUE(EndsOk(receive));
  ASSERT_TRUE(EndsOk(near.Notify(BytesOf("note"))));

  const ConnectionCounters ours = near.Counters();
  const ConnectionCounters theirs = far.Counters();
  for (const OperationKind kind : {OperationKind::kWrite, OperationKind::kRead,
                                   OperationKind::kSend, OperationKind::kNotify}) {
    EXPECT_EQ(ours.traffic.of(kind).begun, 1U) << OperationName(kind);
    EXPECT_EQ(Ended(ours.traffic, kind), 1U) << OperationName(kind);
    EXPECT_EQ(theirs.traffic.of(kind).begun, 0U) << OperationName(kind);
  }
  EXPECT_EQ(Ended(theirs.traffic, OperationKind::kRecv), 1U);
  EXPECT_EQ(ours.traffic.lanes.payload_bytes_sent, kCountedBytes + 104);
  EXPECT_GT(ours.traffic.lanes.bytes_sent, ours.traffic.lanes.payload_bytes_sent);
  EXPECT_EQ(ours.traffic.lanes.retries, 0U);
  EXPECT_EQ(ours.traffic.lanes_lost, 0U);
  EXPECT_TRUE(ours.called);
  EXPECT_FALSE(theirs.called);
  ASSERT_EQ(ours.lanes.size(), kCountedLanes);
  // Whichever lane is free takes the next slice: on a busy machine a lane may carry nothing.
  std::uint64_t frames = 0;
  std::uint64_t payload = 0;
  for (const LaneCounters& lane : ours.lanes) {
    EXPECT_TRUE(lane.up);
    EXPECT_EQ(lane.info.interface, "fake");
    frames += lane.traffic.frames_sent;
    payload += lane.traffic.payload_bytes_sent;
  }
  EXPECT_GT(frames, 0U);
  EXPECT_EQ(frames, ours.traffic.lanes.frames_sent);
  EXPECT_EQ(payload, ours.traffic.lanes.payload_bytes_sent);
  EXPECT_TRUE(near.Events().empty());
}

TEST_F(CountersTest, AnEndpointCountsItsRegionsAndConnections) {
  Link link = NewLink();
  GuardedMemory memory(kCountedBytes);
  std::optional<Region> region = Must(link.near.endpoint->Register(memory.span(), Rights::kNone));
  EndpointCounters counters = link.near.endpoint->Counters();
  EXPECT_EQ(counters.regions, 1U);
  EXPECT_EQ(counters.region_bytes, kCountedBytes);
  EXPECT_EQ(counters.connections_open, 1U);
  EXPECT_EQ(counters.connections_dialled, 1U);
  EXPECT_EQ(counters.connections_accepted, 0U);
  EXPECT_EQ(link.far.endpoint->Counters().connections_accepted, 1U);
  ASSERT_EQ(counters.peers.size(), 1U);
  EXPECT_EQ(counters.peers.front().host, FakeNetwork::kHost);
  EXPECT_EQ(counters.peers.front().lanes.size(), kCountedLanes);
  region.reset();
  link.near.connection->Close();
  counters = link.near.endpoint->Counters();
  EXPECT_EQ(counters.regions, 0U);
  EXPECT_EQ(counters.region_bytes, 0U);
  EXPECT_EQ(counters.connections_lost, 0U);
  EXPECT_TRUE(Until(&link, [&] {
    const EndpointCounters far = link.far.endpoint->Counters();
    return far.connections_open == 0 && far.connections_lost == 1;
  }));
}

TEST_F(CountersTest, TotalsGoOnWhenConnectionsEnd) {
  Link link = NewLink();
  EndpointCounters before = link.near.endpoint->Counters();
  for (std::uint64_t round = 1; round <= 5; ++round) {
    Traffic traffic(&link);
    traffic.Begin();
    traffic.ExpectAllWell();
    const auto look = [&] {
      const EndpointCounters now = link.near.endpoint->Counters();
      ExpectNoLess(before.traffic, now.traffic);
      EXPECT_GE(now.connections_lost, before.connections_lost);
      EXPECT_EQ(now.peers.size(), 1U);
      before = now;
    };
    look();
    link.near.connection->Close();
    look();
    EXPECT_TRUE(Until(&link, [&] {
      look();
      return before.connections_open == 0;
    }));
    EXPECT_EQ(Ended(before.traffic, OperationKind::kWrite), round);
    EXPECT_EQ(before.connections_dialled, round);
    link.near.connection.reset();
    link.far.connection.reset();
    Connect(&link);
  }
}

TEST_F(CountersTest, RefusedAccessesAreCountedAndKeptAmongTheEvents) {
  Link link = NewLink();
  GuardedMemory here(kCountedBytes, 1);
  GuardedMemory there(kCountedBytes, 2);
  const Region local = Must(link.near.endpoint->Register(here.span(), Rights::kNone));
  Region gone = Must(link.far.endpoint->Register(there.span(), Rights::kReadWrite));
  const RemoteRegion remote = gone.remote();
  ASSERT_TRUE(gone.Deregister(Soon()));
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(EndsWith(Code::kRefused, link.near.connection->Read(local, 0, remote, 0, 100)));
  }
  EXPECT_EQ(link.far.connection->Counters().traffic.refused_accesses, 20U);
  EXPECT_EQ(Ended(link.near.connection->Counters().traffic, OperationKind::kRead,
                  PlaceOf(Code::kRefused)),
            20U);
  // The 1st, 2nd, 4th, 8th and 16th.
  EXPECT_EQ(link.far.connection->Events().size(), 5U);
  EXPECT_THAT(TextsOf(link.far.connection->Events()),
              AllOf(HasSubstr("access 16 was refused to the peer"), HasSubstr("is stale")));
  EXPECT_THAT(TextsOf(link.near.connection->Events()), HasSubstr("ended by Refused"));
}

TEST_F(CountersTest, ALaneThatIsResetIsCountedAsLostAndReplaced) {
  SetLogLevel(LogLevel::kOff);
  Link link = NewLink();
  network_.SetFaults({.piece_bytes = 500});
  Traffic traffic(&link);
  traffic.Begin();
  network_.Reset(first_ + 1);
  traffic.ExpectAllWell();
  EXPECT_TRUE(Until(&link, [&] {
    const ConnectionCounters ours = link.near.connection->Counters();
    return ours.traffic.lanes_replaced == 1 && ours.lanes[1].up &&
           link.far.connection->Counters().traffic.lanes_replaced == 1;
  }));
  for (const Side* side : {&link.near, &link.far}) {
    const ConnectionCounters counters = side->connection->Counters();
    EXPECT_EQ(counters.traffic.lanes_lost, 1U);
    EXPECT_THAT(TextsOf(side->connection->Events()),
                AllOf(HasSubstr("lane 1 was lost: "), HasSubstr("lane 1 resumed on fake")));
  }
}

TEST_F(CountersTest, SlicesOfALostLaneAreCountedAsSentAgain) {
  SetLogLevel(LogLevel::kOff);
  Link link = NewLink();
  GuardedMemory here(kCountedBytes, 1);
  GuardedMemory there(kCountedBytes, 2);
  const Region local = Must(link.near.endpoint->Register(here.span(), Rights::kNone));
  const Region remote = Must(link.far.endpoint->Register(there.span(), Rights::kReadWrite));
  // No byte arrives, so all of it is in flight when the lane is reset.
  network_.SetFaults(first_ + 1, {.black_hole = true});
  std::vector<Operation> writes;
  EXPECT_TRUE(Until(&link, [&] {
    if (link.near.connection->Counters().lanes[1].traffic.payload_bytes_sent > 0) return true;
    // The other lane may have been fast enough to carry all of it.
    if (writes.empty() || writes.back().Poll()) {
      writes.push_back(
          Must(link.near.connection->Write(local, 0, remote.remote(), 0, kCountedBytes)));
    }
    return false;
  }));
  network_.Reset(first_ + 1);
  for (const Operation& write : writes) ASSERT_TRUE(EndsOk(write));
  const std::uint64_t bytes = writes.size() * kCountedBytes;
  const ConnectionCounters counters = link.near.connection->Counters();
  EXPECT_GE(counters.lanes[1].traffic.retries, 1U);
  EXPECT_GT(counters.traffic.lanes.payload_bytes_sent, bytes);
  EXPECT_EQ(link.far.connection->Counters().traffic.lanes.payload_bytes_received, bytes);
}

TEST_F(CountersTest, ASilentLaneIsCountedAsStalled) {
  SetLogLevel(LogLevel::kOff);
  config_.heartbeat_interval = milliseconds(20);
  config_.lane_timeout = milliseconds(100);
  config_.peer_timeout = std::chrono::seconds(60);
  Link link = NewLink(2);
  const auto by_second = [](const Side& side) {
    for (const LaneCounters& lane : side.connection->Counters().lanes) {
      if (lane.info.interface == "fake1") return true;
    }
    return false;
  };
  ASSERT_TRUE(Until(&link, [&] { return by_second(link.near) && by_second(link.far); }));
  network_.SetLink("fake1", /*up=*/false, /*announce=*/false);
  EXPECT_TRUE(Until(&link, [&] { return !by_second(link.near) && !by_second(link.far); }));
  const std::uint64_t near_stalls = link.near.connection->Counters().traffic.lane_stalls;
  const std::uint64_t far_stalls = link.far.connection->Counters().traffic.lane_stalls;
  EXPECT_GE(near_stalls + far_stalls, 1U);
  EXPECT_THAT(TextsOf(link.near.connection->Events()) + TextsOf(link.far.connection->Events()),
              HasSubstr("has been silent for"));
}

// Lane 0 carries the acknowledgement, and is slower than the lanes that close.
TEST_F(CountersTest, APeerThatClosesAfterItHasTakenEverythingIsNoWarning) {
  ::testing::internal::CaptureStderr();
  {
    Link link = NewLink();
    ASSERT_TRUE(Works(&link));  // every lane has been used
    std::vector<std::byte> into(4);
    const auto receive = link.far.connection->Recv(1, kWholeTag, into);
    network_.SetFaults(first_, {.delay = milliseconds(400)});
    const auto bytes = BytesOf("last");
    const auto send = link.near.connection->Send(1, bytes);
    EXPECT_TRUE(EndsOk(receive));
    link.far.connection->Close();
    EXPECT_TRUE(EndsOk(send));
    EXPECT_TRUE(IsLostSoon(link.near.connection));
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST_F(CountersTest, APeerThatClosesBeforeItHasTakenEverythingIsAWarning) {
  ::testing::internal::CaptureStderr();
  {
    Link link = NewLink();
    const auto bytes = BytesOf(std::string(kCountedBytes, 'x'));
    const auto send = link.near.connection->Send(1, bytes);  // nobody receives it
    EXPECT_TRUE(EndsOk(link.near.connection->Notify(BytesOf("note"))));
    link.far.connection->Close();
    EXPECT_FALSE(EndsOk(send));
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("[warn] transfer: connection to "), HasSubstr("was lost: ")));
}

TEST_F(CountersTest, ALostConnectionIsLoggedOnceWithWhatCameBefore) {
  config_.heartbeat_interval = milliseconds(20);
  config_.lane_timeout = milliseconds(60);
  config_.peer_timeout = std::chrono::seconds(1);
  ::testing::internal::CaptureStderr();
  {
    Link link = NewLink(2);
    Traffic traffic(&link);
    traffic.Begin();
    for (const char* host : {"fake", "fake1"}) network_.SetLink(host, false, /*announce=*/true);
    traffic.ExpectAllEnd();
    EXPECT_TRUE(IsLostSoon(link.near.connection) && IsLostSoon(link.far.connection));
    EXPECT_TRUE(link.near.connection->Counters().lost);
    EXPECT_THAT(TextsOf(link.near.connection->Events()),
                AllOf(HasSubstr("link fake went down"), HasSubstr("the connection ended: ")));
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  // Logged by each side.
  const std::string words = "was lost: PeerLost: ";
  std::size_t lines = 0;
  for (auto at = log.find(words); at != std::string::npos; at = log.find(words, at + 1)) ++lines;
  EXPECT_EQ(lines, 2U) << log;
  EXPECT_THAT(log, AllOf(HasSubstr("[warn] transfer: connection to "),
                         HasSubstr("s ago: link fake went down")));
}

TEST_F(CountersTest, APeerThatLeavesInGoodOrderIsNoReasonToWarn) {
  ::testing::internal::CaptureStderr();
  {
    Link link = NewLink();
    ASSERT_TRUE(Works(&link));
    link.near.endpoint.reset();
    EXPECT_TRUE(IsLostSoon(link.far.connection));
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST_F(CountersTest, AnOperationThatTimesOutIsLoggedWithTheLastEvents) {
  Link link = NewLink();
  const std::vector<std::byte> message(kCountedBytes);
  link.far.connection->Counters();
  const auto log_of_one = [&] {
    ::testing::internal::CaptureStderr();
    EXPECT_TRUE(
        EndsWith(Code::kTimedOut, link.near.connection->Send(1, message, {.deadline = Now()})));
    return ::testing::internal::GetCapturedStderr();
  };
  // The caller has its error, and no event preceded it.
  EXPECT_EQ(log_of_one(), "");
  EXPECT_THAT(log_of_one(), AllOf(HasSubstr("did not end before its deadline"),
                                  HasSubstr("ago: send 1 ended by TimedOut")));
  // A receive that times out is not worth a warning.
  std::vector<std::byte> into(10);
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(EndsWith(Code::kTimedOut,
                       link.near.connection->Recv(1, kWholeTag, into, {.deadline = Now()})));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_THAT(TextsOf(link.near.connection->Events()),
              AllOf(HasSubstr("ended by TimedOut"), Not(HasSubstr("the connection ended"))));
}

TEST_F(CountersTest, PendingPeersThatAreRefusedAreCounted) {
  config_.secret = "a secret of the two of them";
  Link link = NewLink();
  Config other = config_;
  other.secret = "the secret of somebody else";
  Endpoint pending_peer = Must(Endpoint::Create(other, network_.CreateProvider()));
  EXPECT_FALSE(pending_peer.Connect(
      EndpointAddress{link.far.endpoint->id(), {{FakeNetwork::kHost, link.far.endpoint->port()}}},
      Soon()));
  EXPECT_GE(link.far.endpoint->Counters().handshakes_refused, 1U);
}

TEST(CounterAggregator, HostsAreNamedWithoutTheirPorts) {
  EXPECT_EQ(CounterAggregator::HostOf("10.0.0.1:7471"), "10.0.0.1");
  EXPECT_EQ(CounterAggregator::HostOf("[::1]:7471"), "::1");
  EXPECT_EQ(CounterAggregator::HostOf("fake"), "fake");
}

TEST(Counters, EveryOutcomeHasItsPlaceAndName) {
  EXPECT_STREQ(OutcomeName(OutcomeOf(Ok())), "ok");
  EXPECT_STREQ(OutcomeName(OutcomeOf(Error(Code::kInternal, ""))), "Internal");
  EXPECT_LT(OutcomeOf(Error(Code::kInternal, "")), kOutcomes);
}

// TCP reports more about its network path than the in-memory network.
TEST(Counters, ATcpLaneKnowsItsRoundTripAndWindow) {
  Config config = SmallSlices();
  config.heartbeat_interval = milliseconds(20);
  Link link = MakeLink(config, config);
  EXPECT_TRUE(Until(&link, [&] {
    const ConnectionCounters counters = link.near.connection->Counters();
    return counters.lanes[0].path.known && counters.lanes[1].path.known;
  }));
  const LaneCounters lane = link.near.connection->Counters().lanes[0];
  EXPECT_GT(lane.path.round_trip.count(), 0);
  EXPECT_GT(lane.path.congestion_window_bytes, 0U);
}

}  // namespace
}  // namespace ferry::transfer
