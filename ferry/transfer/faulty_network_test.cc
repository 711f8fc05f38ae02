#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "ferry/net/testing/fake_provider.h"
#include "ferry/transfer/testing/linked_endpoints.h"

// The engine over a network in memory that cuts, delays, loses and ends at any byte, and that
// checks how its lanes are used.
namespace ferry::transfer {
namespace {

using net::FakeFaults;
using net::FakeNetwork;
using ::testing::HasSubstr;

constexpr std::uint64_t kWhole = ~std::uint64_t{0};
constexpr std::size_t kBytes = 300'000;

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

// Its operations may all have ended before it notices.
bool IsLostSoon(std::optional<Connection>& connection) {
  Result<std::vector<std::byte>> note = connection->TakeNotification(Soon());
  while (note) note = connection->TakeNotification(Soon());
  return note.error().code() == Code::kPeerLost;
}

// Operations of every kind in both directions, all of which end well on a network that works.
class Traffic {
 public:
  explicit Traffic(Link* link)
      : link_(link),
        local_(Must(link->near.endpoint->Register(here_.span(), Rights::kNone))),
        into_(Must(link->near.endpoint->Register(fetched_.span(), Rights::kNone))),
        target_(Must(link->far.endpoint->Register(there_.span(), Rights::kReadWrite))),
        source_(Must(link->far.endpoint->Register(given_.span(), Rights::kRead))) {}

  void Begin() {
    Connection near = *link_->near.connection;
    Connection far = *link_->far.connection;
    Keep(far.Recv(1, kWhole, large_in_.span()));
    Keep(near.Send(1, large_out_.span()));
    Keep(far.Recv(2, kWhole, small_in_.span()));
    Keep(near.Send(2, large_out_.span().first(1000)));
    Keep(near.Recv(3, kWhole, back_in_.span()));
    Keep(far.Send(3, given_.span()));
    Keep(near.Notify(BytesOf("note")));
    BlockList list;
    for (std::uint64_t i = 0; i < 100; ++i) {
      list.Add({.dst = i * 3000, .src = (99 - i) * 3000, .len = 2999});
    }
    const RemoteRegion target = target_.remote();
    const RemoteRegion source = source_.remote();
    std::vector<TransferPart> out;
    out.push_back({&local_, &target, list});
    std::vector<TransferPart> in;
    in.push_back({&into_, &source, list});
    Keep(near.Write(Must(near.PrepareWrite(std::move(out)))));
    Keep(near.Read(Must(near.PrepareRead(std::move(in)))));
  }
  void ExpectAllWell() {
    for (const Operation& operation : operations_) EXPECT_TRUE(EndsOk(operation));
    EXPECT_EQ(large_in_.Copy(), large_out_.Copy());
    EXPECT_EQ(back_in_.Copy(), given_.Copy());
    EXPECT_TRUE(std::equal(there_.span().begin(), there_.span().begin() + 2999,
                           here_.span().begin() + 99 * 3000));
    EXPECT_TRUE(std::equal(fetched_.span().begin(), fetched_.span().begin() + 2999,
                           given_.span().begin() + 99 * 3000));
  }
  // All have ended: well, or because the connection was lost. Then nothing touches memory any more.
  void ExpectAllEnd() {
    for (Operation& operation : operations_) {
      const Status status = operation.Wait(Soon());
      ASSERT_TRUE(operation.Poll());
      if (status) continue;
      EXPECT_EQ(status.error().code(), Code::kPeerLost) << status.error().ToString();
      EXPECT_NE(status.error().message(), "");
    }
    for (Region* region : {&local_, &into_, &target_, &source_}) {
      EXPECT_TRUE(region->Deregister(Soon()));
    }
  }
  bool GuardsIntact() const {
    return std::all_of(all_.begin(), all_.end(), [](const auto* m) { return m->GuardsIntact(); });
  }

 private:
  void Keep(const Result<Operation>& operation) {
    if (operation) operations_.push_back(*operation);
  }

  GuardedMemory here_{kBytes, 1};
  GuardedMemory there_{kBytes, 2};
  GuardedMemory fetched_{kBytes, 3};
  GuardedMemory given_{kBytes, 4};
  GuardedMemory large_out_{kBytes, 5};
  GuardedMemory large_in_{kBytes, 6};
  GuardedMemory small_in_{1000, 7};
  GuardedMemory back_in_{kBytes, 8};
  std::vector<const GuardedMemory*> all_{&here_,      &there_,    &fetched_,  &given_,
                                         &large_out_, &large_in_, &small_in_, &back_in_};
  Link* link_;
  Region local_;
  Region into_;
  Region target_;
  Region source_;
  std::vector<Operation> operations_;
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

// Two lanes' hellos and joins are 64 and 56 bytes, the answers 80 and 32.
TEST_F(FaultyNetworkTest, AGreetingThatIsCutAtAnyByteFailsOrWorksAndTheNextOneWorks) {
  Endpoint server = NewEndpoint(FakeConfig(2, 1));
  Endpoint client = NewEndpoint(FakeConfig(2, 1));
  for (const bool to_listener : {true, false}) {
    for (std::uint64_t at = 0; at <= 90; ++at) {
      FakeFaults faults;
      (to_listener ? faults.cut_to_listener : faults.cut_to_connector) = at;
      network_.SetFaults(faults);
      auto connected = client.Connect(server.address(), Soon());
      if (!connected) {
        EXPECT_EQ(connected.error().code(), Code::kPeerLost) << connected.error().ToString();
        continue;
      }
      const auto end = connected->TakeNotification(Soon());
      EXPECT_TRUE(end || end.error().code() == Code::kPeerLost);
    }
  }
  network_.SetFaults({});
  Connection out = Must(client.Connect(server.address(), Soon()));
  ASSERT_TRUE(EndsOk(out.Notify(BytesOf("at last"))));
  for (;;) {
    Connection in = Must(server.Accept(Soon()));
    const auto note = in.TakeNotification(Soon());
    if (!note) continue;  // one of those that were cut
    EXPECT_EQ(TextOf(*note), "at last");
    break;
  }
}

TEST_F(FaultyNetworkTest, ConnectionsCutAtAnyPointOfTheirTrafficEndEveryOperation) {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    network_.SetFaults({.seed = random(), .piece_bytes = 1 + random() % 5000});
    const std::size_t first = network_.connections();
    Link link = NewLink();
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

TEST_F(FaultyNetworkTest, ConnectionsResetInTheMiddleOfTheirTrafficEndEveryOperation) {
  std::mt19937 random(8);
  for (int round = 0; round < 30; ++round) {
    network_.SetFaults({.seed = random(), .piece_bytes = 1 + random() % 3000});
    const std::size_t first = network_.connections();
    Link link = NewLink();
    Traffic traffic(&link);
    traffic.Begin();
    network_.Reset(first + random() % 3);
    traffic.ExpectAllEnd();
    EXPECT_TRUE(traffic.GuardsIntact());
    EXPECT_TRUE(IsLostSoon(link.near.connection) && IsLostSoon(link.far.connection));
  }
}

TEST_F(FaultyNetworkTest, APeerBeyondABlackHoleIsNoticed) {
  Config config = FakeConfig();
  config.heartbeat_interval = milliseconds(50);
  config.peer_timeout = milliseconds(300);
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
