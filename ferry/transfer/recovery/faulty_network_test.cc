// Tests the engine over an in-memory network with injected faults.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "ferry/net/testing/fake_provider.h"
#include "ferry/transfer/testing/linked_endpoints.h"
#include "ferry/transfer/testing/traffic.h"

// The engine over an in-memory network that cuts, delays, loses and ends at any byte, and that
// checks how its lanes are used.
namespace ferry::transfer {
namespace {

using net::FakeFaults;
using net::FakeNetwork;
using ::testing::HasSubstr;

Config FakeConfig(int lanes = 3, int workers = 2) {
  Config config = SmallSlices(lanes, workers);
  config.listen_host = FakeNetwork::kHost;
  config.eager_bytes = 8 * 1024;
  return config;
}

class FaultyNetworkTest : public ::testing::Test {
 protected:
  Endpoint NewEndpoint(const Config& config = FakeConfig()) {
    return Must(Endpoint::Create(config, network_.CreateProvider()));
  }
  Link NewLink(const Config& config = FakeConfig()) {
    Link link{{NewEndpoint(config), {}}, {NewEndpoint(config), {}}};
    link.near.connection = Must(link.near.endpoint->Connect(link.far.endpoint->address(), Soon()));
    link.far.connection = Must(link.far.endpoint->Accept(Soon()));
    return link;
  }

  FakeNetwork network_;
};

TEST_F(FaultyNetworkTest, EverythingArrivesWholeInPiecesOfAnySize) {
  for (const std::size_t piece : {0U, 20'000U, 1000U, 37U}) {
    SCOPED_TRACE(std::to_string(piece) + " bytes at a time");
    network_.SetFaults({.seed = piece, .piece_bytes = piece});
    Link link = NewLink();
    Traffic traffic(&link);
    traffic.Begin();
    traffic.ExpectAllWell();
    EXPECT_TRUE(traffic.GuardsIntact());
  }
}

TEST_F(FaultyNetworkTest, EverythingArrivesWholeThroughNarrowPipesAndWithDelays) {
  for (const auto& faults :
       {FakeFaults{.seed = 1, .pipe_bytes = 3000}, FakeFaults{.seed = 2, .delay = milliseconds(1)},
        FakeFaults{.seed = 3, .pipe_bytes = 5000, .piece_bytes = 999, .delay = microseconds(99)}}) {
    network_.SetFaults(faults);
    Link link = NewLink(FakeConfig(5, 3));
    Traffic traffic(&link);
    traffic.Begin();
    traffic.ExpectAllWell();
    EXPECT_TRUE(Works(&link));
    EXPECT_TRUE(traffic.GuardsIntact());
  }
}

// Two lanes' hello and join frames are 88 and 64 bytes, the answers 96 and 40, the first pings 40.
TEST_F(FaultyNetworkTest, AHandshakeThatIsCutIsMadeAgain) {
  Endpoint server = NewEndpoint(FakeConfig(2, 1));
  Endpoint client = NewEndpoint(FakeConfig(2, 1));
  for (const std::size_t lane : {0U, 1U}) {
    for (const bool to_listener : {true, false}) {
      for (std::uint64_t at = 0; at <= 130; at += 7 + 6 * lane) {
        FakeFaults faults;
        (to_listener ? faults.cut_to_listener : faults.cut_to_connector) = at;
        network_.SetFaults(network_.connections() + lane, faults);
        Connection connected = Must(client.Connect(server.address(), Soon()));
        // It was cut just after the handshake, or earlier and repeated.
        const auto note = connected.Notify(BytesOf("cut?"));
        const bool never_began = !note && note.error().code() == Code::kPeerLost;
        EXPECT_TRUE(never_began || EndsOk(note) || EndsWith(Code::kPeerLost, note));
        connected.Close();
      }
    }
  }
  Connection out = Must(client.Connect(server.address(), Soon()));
  ASSERT_TRUE(EndsOk(out.Notify(BytesOf("at last"))));
  for (;;) {
    Connection in = Must(server.Accept(Soon()));
    const auto note = in.TakeNotification(Soon());
    if (note && TextOf(*note) == "at last") break;
  }
}

TEST_F(FaultyNetworkTest, ConnectionsCutAtAnyPointOfTheirTrafficEndEveryOperation) {
  std::mt19937 random(7);
  Config config = FakeConfig();
  config.drain_grace = milliseconds(50);  // the time that the other lanes are still read
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    network_.SetFaults({.seed = random(), .piece_bytes = 1 + random() % 5000});
    const std::size_t first = network_.connections();
    Link link = NewLink(config);
    FakeFaults faults{.seed = random(), .piece_bytes = 1 + random() % 5000};
    const std::uint64_t at = 100 + random() % 200'000;
    (round % 2 == 0 ? faults.cut_to_listener : faults.cut_to_connector) = at;
    network_.SetFaults(first + random() % 3, faults);
    Traffic traffic(&link);
    traffic.Begin();
    traffic.ExpectAllEnd();
    EXPECT_TRUE(traffic.GuardsIntact());
  }
}

TEST_F(FaultyNetworkTest, ConnectionsThatLoseAllLanesAtOnceEndEveryOperation) {
  std::mt19937 random(8);
  for (int round = 0; round < 30; ++round) {
    network_.SetFaults({.seed = random(), .piece_bytes = 1 + random() % 3000});
    const std::size_t first = network_.connections();
    Link link = NewLink();
    Traffic traffic(&link);
    traffic.Begin();
    network_.SetAnswer(net::FakeAnswer::kRefuse);
    for (std::size_t lane = 0; lane < 3; ++lane) network_.Reset(first + lane);
    traffic.ExpectAllEnd();
    EXPECT_TRUE(traffic.GuardsIntact());
    EXPECT_TRUE(IsLostSoon(link.near.connection) && IsLostSoon(link.far.connection));
    network_.SetAnswer(net::FakeAnswer::kAccept);
  }
}

TEST_F(FaultyNetworkTest, APeerBeyondABlackHoleIsNoticed) {
  Config config = FakeConfig();
  config.heartbeat_interval = milliseconds(50);
  config.peer_timeout = std::chrono::seconds(1);
  Link link = NewLink(config);
  Traffic traffic(&link);
  network_.SetFaults({.black_hole = true});
  traffic.Begin();
  traffic.ExpectAllEnd();
  const auto end = link.far.connection->TakeNotification(Soon());
  EXPECT_FALSE(end);
  EXPECT_TRUE(traffic.GuardsIntact());
}

TEST_F(FaultyNetworkTest, AnEndpointMayGoWhileItsNetworkIsABlackHole) {
  Link link = NewLink();
  Traffic traffic(&link);
  network_.SetFaults({.black_hole = true});
  traffic.Begin();
  link.far.endpoint.reset();
  link.near.endpoint.reset();
  EXPECT_TRUE(traffic.GuardsIntact());
}

TEST_F(FaultyNetworkTest, ACallThatIsRefusedOrNotAnsweredSaysSo) {
  Endpoint server = NewEndpoint();
  Endpoint client = NewEndpoint();
  network_.SetAnswer(net::FakeAnswer::kRefuse);
  const auto refused = client.Connect(server.address(), Soon());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kPeerLost);
  network_.SetAnswer(net::FakeAnswer::kSilence);
  const auto silent = client.Connect(server.address(), Deadline::After(milliseconds(50)));
  ASSERT_FALSE(silent);
  EXPECT_EQ(silent.error().code(), Code::kTimedOut);
  EXPECT_THAT(silent.error().message(), HasSubstr("no answer in time"));
}

}  // namespace
}  // namespace ferry::transfer
