// Runs the provider conformance suite on the in-memory network, and tests its faults.
#include "ferry/net/testing/fake_provider.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "ferry/net/testing/conformance.h"

namespace ferry::net {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// ---- without and with harmless faults: the whole contract ---------------------------------------

class FakeTarget : public ConformanceTarget {
 public:
  explicit FakeTarget(const FakeFaults& faults) { network_.SetFaults(faults); }
  std::unique_ptr<Provider> MakeProvider() override { return network_.CreateProvider(); }
  Address ListenAddress() override { return {FakeNetwork::kHost, 0}; }
  Address SilentAddress() override {
    network_.SetAnswer(FakeAnswer::kSilence);
    return {FakeNetwork::kHost, 1};
  }
  std::size_t LargeBytes() override { return std::size_t{16} << 20; }

 private:
  FakeNetwork network_;
};

std::unique_ptr<ConformanceTarget> MakeTarget(const FakeFaults& faults) {
  return std::make_unique<FakeTarget>(faults);
}

INSTANTIATE_TEST_SUITE_P(
    Fake, ProviderConformance,
    ::testing::Values(
        ConformanceCase{"Perfect", [] { return MakeTarget({}); }},
        ConformanceCase{"RandomPieces", [] { return MakeTarget({.piece_bytes = 300'000}); }},
        ConformanceCase{"SmallPipe", [] { return MakeTarget({.pipe_bytes = 5000}); }},
        ConformanceCase{"Delays", [] { return MakeTarget({.delay = milliseconds(3)}); }}),
    ConformanceCaseName);

// ---- faults -------------------------------------------------------------------------------------

class FakeNetworkFaults : public ::testing::Test {
 protected:
  // Makes the next connection; neither end is attached.
  void Connect() {
    const auto address = far_host_.Listen({FakeNetwork::kHost, 0}, {});
    ASSERT_TRUE(address);
    auto lane = near_host_.Connect(*address, {});
    ASSERT_TRUE(lane) << lane.error().ToString();
    Destroy(&near_);
    Destroy(&far_);
    near_ = std::make_unique<LaneEnd>(*std::move(lane), near_host_.loop());
    far_ = std::make_unique<LaneEnd>(far_host_.Accept(), far_host_.loop());
  }
  void ConnectAndAttach() {
    ASSERT_NO_FATAL_FAILURE(Connect());
    near_->Attach();
    far_->Attach();
  }
  void Send(std::string_view meta, std::size_t bytes = 0) {
    near_->Send(near_->Make(meta, CutInto(bytes, {})));
  }
  void CountTurnsUntilPayload() {
    if (far_->log() != "F") return;
    tally_.Add();
    far_->loop()->Post([this] { CountTurnsUntilPayload(); });
  }
  static void ExpectLost(LaneEnd& end, const ::testing::Matcher<std::string>& message) {
    const auto closed = end.AwaitClosed();
    ASSERT_TRUE(closed);
    EXPECT_EQ(closed->code(), Code::kPeerLost);
    EXPECT_THAT(closed->message(), message);
  }

  FakeNetwork network_;
  TestHost near_host_{network_.CreateProvider()};
  TestHost far_host_{network_.CreateProvider()};
  Tally tally_;
  std::unique_ptr<LaneEnd> near_;
  std::unique_ptr<LaneEnd> far_;
};

TEST_F(FakeNetworkFaults, ACutEndsBothSidesInTheMiddleOfAFrame) {
  const std::uint64_t cut = kFakePrefixBytes + 1 + 500;
  network_.SetFaults({.cut_to_listener = cut});
  ASSERT_NO_FATAL_FAILURE(ConnectAndAttach());
  Send("a", 1000);
  ExpectLost(*far_, HasSubstr("in the middle of a frame"));
  EXPECT_EQ(far_->log(), "FC");
  EXPECT_EQ(far_->lane().BytesReceived(), cut);
  ExpectLost(*near_, HasSubstr("reset"));
}

TEST_F(FakeNetworkFaults, ACutCountsFromTheStartOfTheConnection) {
  const std::uint64_t one_frame = kFakePrefixBytes + 1 + 100;
  network_.SetFaults({.cut_to_listener = 3 * one_frame});
  ASSERT_NO_FATAL_FAILURE(ConnectAndAttach());
  for (const char* meta : {"a", "b", "c", "d"}) {
    near_->Do([&](Lane& lane) { lane.Send(near_->Make(meta, CutInto(100, {}))); });
  }
  ExpectLost(*far_, Not(HasSubstr("in the middle of a frame")));
  EXPECT_EQ(far_->log(), "FPFPFPC");
}

TEST_F(FakeNetworkFaults, ACutOfOneDirectionLeavesTheOtherUncounted) {
  network_.SetFaults({.cut_to_connector = kFakePrefixBytes});
  ASSERT_NO_FATAL_FAILURE(ConnectAndAttach());
  Send("a", 1000);
  EXPECT_EQ(far_->Take(1).size(), 1U);
  EXPECT_EQ(network_.BytesSent(0, FakeDirection::kToListener), kFakePrefixBytes + 1 + 1000);
  far_->Send(far_->Make("b"));
  ExpectLost(*near_, HasSubstr("in the middle of a frame"));
  ExpectLost(*far_, HasSubstr("reset"));
}

TEST_F(FakeNetworkFaults, CuttingNowLetsWhatIsOnItsWayArrive) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  near_->Attach();
  Send("a", 1000);
  EXPECT_TRUE(near_->AwaitSent(1));
  network_.Cut(0);
  ExpectLost(*near_, HasSubstr("closed"));
  far_->Attach();
  ExpectLost(*far_, HasSubstr("closed"));
  EXPECT_EQ(far_->log(), "FPC");
}

TEST_F(FakeNetworkFaults, AResetLosesWhatIsOnItsWayAndReachesAPausedLane) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  far_->on_frame = [this](const std::string&, std::uint64_t) -> LaneEnd::Choice {
    tally_.Add();
    return Placement{Placement::Action::kPause, {}};
  };
  near_->Attach();
  far_->Attach();
  Send("a", 1000);
  ASSERT_TRUE(tally_.AwaitAtLeast(1));
  network_.Reset(0);
  ExpectLost(*far_, HasSubstr("reset"));
  ExpectLost(*near_, HasSubstr("reset"));
  EXPECT_EQ(far_->log(), "FC");
}

TEST_F(FakeNetworkFaults, ABlackHoleSwallowsFramesAndTellsNobody) {
  ASSERT_NO_FATAL_FAILURE(ConnectAndAttach());
  network_.SetFaults({.black_hole = true});
  for (int i = 0; i < 3; ++i) Send("lost", 100'000);
  EXPECT_TRUE(near_->AwaitSent(3));
  network_.SetFaults({});
  Send("found", 10);
  const auto arrived = far_->Take(1);
  ASSERT_EQ(arrived.size(), 1U);
  EXPECT_EQ(arrived[0].meta, "found");
  EXPECT_EQ(far_->log(), "FP");
}

TEST_F(FakeNetworkFaults, AFullPipeMakesTheSenderWait) {
  network_.SetFaults({.pipe_bytes = 10'000});
  ASSERT_NO_FATAL_FAILURE(Connect());
  near_->Attach();
  std::vector<TestFrame*> frames(10);
  for (TestFrame*& frame : frames) frame = near_->Make("a", CutInto(4000, {}));
  near_->Send(frames);
  for (int i = 0; i < 10; ++i) near_->Do([](Lane&) {});
  EXPECT_EQ(near_->sent().size(), 2U);
  EXPECT_EQ(network_.BytesSent(0, FakeDirection::kToListener), 10'000U);
  far_->Attach();
  EXPECT_EQ(far_->Take(10).size(), 10U);
  EXPECT_TRUE(near_->AwaitSent(10));
}

TEST_F(FakeNetworkFaults, PiecesArriveOverManyTurns) {
  network_.SetFaults({.piece_bytes = 100});
  ASSERT_NO_FATAL_FAILURE(Connect());
  far_->on_frame = [this](const std::string&, std::uint64_t) -> LaneEnd::Choice {
    CountTurnsUntilPayload();
    return std::nullopt;
  };
  near_->Attach();
  far_->Attach();
  Send("a", 10'000);
  EXPECT_EQ(far_->Take(1).size(), 1U);
  EXPECT_GE(tally_.count(), 100);
}

TEST_F(FakeNetworkFaults, DelayedBytesArriveLaterAndInOrder) {
  network_.SetFaults({.delay = milliseconds(40)});
  ASSERT_NO_FATAL_FAILURE(ConnectAndAttach());
  const auto start = Clock::now();
  for (int i = 0; i < 20; ++i) Send(std::to_string(i), 100);
  const auto arrived = far_->Take(20);
  EXPECT_GE(Clock::now() - start, milliseconds(20));
  ASSERT_EQ(arrived.size(), 20U);
  for (std::size_t i = 0; i < 20; ++i) EXPECT_EQ(arrived[i].meta, std::to_string(i));
}

TEST_F(FakeNetworkFaults, OneConnectionMayHaveFaultsOfItsOwn) {
  network_.SetFaults(1, {.cut_to_listener = 0});
  ASSERT_NO_FATAL_FAILURE(ConnectAndAttach());
  Send("a", 1000);
  EXPECT_EQ(far_->Take(1).size(), 1U);
  ASSERT_NO_FATAL_FAILURE(ConnectAndAttach());
  EXPECT_EQ(network_.connections(), 2U);
  Send("a", 1000);
  ExpectLost(*far_, HasSubstr("closed"));
  EXPECT_EQ(far_->log(), "C");
}

TEST_F(FakeNetworkFaults, ConnectsAreRefusedWhileTheTestSaysSo) {
  const auto address = far_host_.Listen({FakeNetwork::kHost, 0}, {});
  ASSERT_TRUE(address);
  network_.SetAnswer(FakeAnswer::kRefuse);
  const auto refused = near_host_.Connect(*address, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kPeerLost);
  EXPECT_THAT(refused.error().message(), HasSubstr(address->ToString()));
  network_.SetAnswer(FakeAnswer::kAccept);
  EXPECT_TRUE(near_host_.Connect(*address, {}));
}

TEST_F(FakeNetworkFaults, ALaneOnItsWayToAListenerThatGoesIsClosed) {
  std::unique_ptr<Listener> listener;
  RunOn(*far_host_.loop(), [&] {
    auto listening = far_host_.provider().Listen(
        {FakeNetwork::kHost, 0}, {}, far_host_.loop(),
        [](auto) { ADD_FAILURE() << "accepted by a listener that has gone"; });
    ASSERT_TRUE(listening);
    listener = *std::move(listening);
  });
  const Address address = listener->address();
  Tally connected;
  far_host_.loop()->Post([&] {
    EXPECT_TRUE(connected.AwaitAtLeast(1));
    listener.reset();
  });
  auto lane = near_host_.Connect(address, {});
  connected.Add();
  ASSERT_TRUE(lane);
  RunOn(*far_host_.loop(), [] {});
  near_ = std::make_unique<LaneEnd>(*std::move(lane), near_host_.loop());
  near_->Attach();
  ExpectLost(*near_, HasSubstr("closed"));
}

TEST(FakeNetwork, MayGoBeforeItsProvidersAndLanes) {
  auto network = std::make_unique<FakeNetwork>();
  TestHost near_host(network->CreateProvider());
  TestHost far_host(network->CreateProvider());
  network.reset();
  const auto address = far_host.Listen({FakeNetwork::kHost, 0}, {});
  ASSERT_TRUE(address);
  auto lane = near_host.Connect(*address, {});
  ASSERT_TRUE(lane);
  LaneEnd near(*std::move(lane), near_host.loop());
  LaneEnd far(far_host.Accept(), far_host.loop());
  near.Attach();
  far.Attach();
  near.Send(near.Make("a", CutInto(1000, {})));
  EXPECT_EQ(far.Take(1).size(), 1U);
}

}  // namespace
}  // namespace ferry::net
