// Tests of the plain-socket copy.

#include "tools/perf/floor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <future>
#include <numeric>

namespace ferry::tools {
namespace {

using ::testing::HasSubstr;

constexpr auto kFloorWait = std::chrono::seconds(20);
constexpr std::size_t kSockets = 3;

// Both ends of three sockets.
class Floor : public testing::Test {
 protected:
  void SetUp() override {
    config_.congestion_control = CongestionControl::System();
    auto listener = FloorListener::Open(config_, "127.0.0.1");
    ASSERT_TRUE(listener);
    auto accepted = std::async(std::launch::async, [&] {
      return listener->Accept(config_, kSockets, Deadline::After(kFloorWait));
    });
    pending_peer_ = Connect(*listener, Uuid::Random(), 1);
    near_ = Connect(*listener, listener->token(), kSockets);
    auto far = accepted.get();
    ASSERT_TRUE(far);
    ASSERT_TRUE(near_);
    far_.emplace(*std::move(far));
  }

  std::optional<FloorSockets> Connect(const FloorListener& listener, const Uuid& token,
                                      std::size_t count) const {
    auto sockets = FloorSockets::Connect(config_, {"127.0.0.1", listener.port()}, token, count,
                                         Deadline::After(kFloorWait));
    if (!sockets) return std::nullopt;
    return *std::move(sockets);
  }

  void Move(const FloorRun& run, std::size_t bytes) {
    std::vector<std::byte> from(bytes);
    std::vector<std::byte> to(bytes);
    for (std::size_t i = 0; i < bytes; ++i) from[i] = static_cast<std::byte>(i % 251);
    auto produced = std::async(std::launch::async, [&] { return near_->Produce(from, run); });
    const Status consumed = far_->Consume(to, run);
    const Status sent = produced.get();
    EXPECT_TRUE(consumed) << consumed.error().message();
    EXPECT_TRUE(sent) << sent.error().message();
    EXPECT_TRUE(from == to);
  }

  Config config_;
  std::optional<FloorSockets> near_;
  std::optional<FloorSockets> far_;
  std::optional<FloorSockets> pending_peer_;  // does not know the token
};

TEST_F(Floor, MovesTheWholeBufferWhateverItsSize) {
  for (const std::size_t bytes : {1U, 2U, 63U, 64U, 191U, 192U, 1000U, 1U << 20}) {
    for (const bool asked_for : {false, true}) {
      Move({.asked_for = asked_for, .count = 3, .depth = 1, .chunk = 4096}, bytes);
    }
  }
}

TEST_F(Floor, MayBeAheadByItsDepth) {
  for (const std::uint64_t depth : {1U, 2U, 7U, 100U}) {
    for (const bool asked_for : {false, true}) {
      Move({.asked_for = asked_for, .count = 10, .depth = depth, .chunk = 1000}, 5000);
    }
  }
}

TEST_F(Floor, PingsGoToAndFro) {
  for (const bool spin : {false, true}) {
    std::vector<double> half_round_trips;
    auto pong =
        std::async(std::launch::async, [&] { return far_->Pong({.count = 20, .spin = spin}); });
    EXPECT_TRUE(near_->Ping({.count = 20, .spin = spin}, &half_round_trips));
    EXPECT_TRUE(pong.get());
    EXPECT_EQ(half_round_trips.size(), 20U);
  }
}

TEST_F(Floor, NoticesAPeerThatIsGone) {
  far_.reset();
  std::vector<std::byte> buffer(1000);
  EXPECT_EQ(near_->Consume(buffer, {.count = 1, .chunk = 1000}).error().code(), Code::kPeerLost);
}

TEST_F(Floor, SmallTransfersGoWholeOverOneSocket) {
  // 64 KiB for each of the three sockets, and one byte less than that.
  for (const std::size_t bytes : {3U * 64 * 1024 - 1, 3U * 64 * 1024}) {
    Move({.asked_for = false, .count = 2, .depth = 2, .chunk = 1 << 20}, bytes);
  }
}

TEST_F(Floor, NoticesAPeerThatGoesInTheMiddleOfAPing) {
  for (const bool spin : {false, true}) {
    if (spin) SetUp();
    far_.reset();
    std::vector<double> half_round_trips;
    const Status pinged = near_->Ping({.count = 1, .spin = spin}, &half_round_trips);
    ASSERT_FALSE(pinged);
    EXPECT_EQ(pinged.error().code(), Code::kPeerLost) << pinged.error().ToString();
    EXPECT_TRUE(half_round_trips.empty());
  }
}

// The kernel's timeout is the sooner of the two here: the socket's is in whole seconds.
TEST_F(Floor, APeerThatTakesNothingIsLostByItsNameWhicheverTimeoutEndsTheWait) {
  config_.peer_timeout = milliseconds(1500);
  SetUp();
  const std::vector<std::byte> buffer(64 << 20);
  const Status produced = near_->Produce(buffer, {.count = 1, .depth = 1, .chunk = 1 << 20});
  ASSERT_FALSE(produced);
  EXPECT_EQ(produced.error().code(), Code::kPeerLost) << produced.error().ToString();
  EXPECT_THAT(produced.error().message(), HasSubstr("127.0.0.1:"));
  EXPECT_THAT(produced.error().message(), HasSubstr("has been silent for 2 s"));
}

// ---- connecting ---------------------------------------------------------------------------------

// A listener on the loopback interface, and its token.
class FloorConnecting : public testing::Test {
 protected:
  FloorConnecting() : listener_(FloorListener::Open(Settings(), "127.0.0.1")) {
    EXPECT_TRUE(listener_) << listener_.error().ToString();
  }
  static Config Settings() {
    Config config;
    config.congestion_control = CongestionControl::System();
    return config;
  }
  Result<FloorSockets> Accept(std::size_t count, Deadline deadline) {
    return listener_->Accept(Settings(), count, deadline);
  }
  Result<FloorSockets> ConnectSome(std::size_t count) {
    return FloorSockets::Connect(Settings(), {"127.0.0.1", listener_->port()}, listener_->token(),
                                 count, Deadline::After(kFloorWait));
  }

  Result<FloorListener> listener_;
};

TEST_F(FloorConnecting, EndsAtItsDeadlineWhereNobodyComes) {
  const auto floor = Accept(1, Deadline::After(milliseconds(10)));
  ASSERT_FALSE(floor);
  EXPECT_EQ(floor.error().code(), Code::kTimedOut);
  EXPECT_THAT(floor.error().message(), HasSubstr("were not connected in time"));
}

TEST_F(FloorConnecting, EndsAtItsDeadlineWhereTooFewCome) {
  const auto near = ConnectSome(2);
  ASSERT_TRUE(near);
  EXPECT_EQ(Accept(3, Deadline::After(milliseconds(50))).error().code(), Code::kTimedOut);
}

TEST_F(FloorConnecting, TakesEachSocketOnce) {
  const auto first = ConnectSome(1);
  const auto again = ConnectSome(1);
  ASSERT_TRUE(first && again);
  EXPECT_EQ(Accept(2, Deadline::After(milliseconds(50))).error().code(), Code::kTimedOut);
}

TEST_F(FloorConnecting, TakesNoSocketBeyondTheCount) {
  const auto near = ConnectSome(3);
  ASSERT_TRUE(near);
  EXPECT_TRUE(Accept(1, Deadline::After(kFloorWait)));
  EXPECT_EQ(Accept(1, Deadline::After(milliseconds(50))).error().code(), Code::kTimedOut);
}

TEST_F(FloorConnecting, PassesOverPeersThatLeaveBeforeTheySayWhoTheyAre) {
  for (int i = 0; i < 3; ++i) {
    const UniqueFd passing(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(listener_->port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    // The interface of sockets takes every kind of address by this type.
    ASSERT_EQ(::connect(passing.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  const auto near = ConnectSome(1);
  ASSERT_TRUE(near);
  EXPECT_TRUE(Accept(1, Deadline::After(kFloorWait)));
}

TEST_F(FloorConnecting, ToAPortWhereNobodyListensFails) {
  std::uint16_t closed = 0;
  {
    const auto gone = FloorListener::Open(Settings(), "127.0.0.1");
    ASSERT_TRUE(gone);
    closed = gone->port();
  }
  const auto floor = FloorSockets::Connect(Settings(), {"127.0.0.1", closed}, Uuid::Random(), 1,
                                           Deadline::After(kFloorWait));
  ASSERT_FALSE(floor);
  EXPECT_EQ(floor.error().code(), Code::kPeerLost) << floor.error().ToString();
  EXPECT_FALSE(FloorSockets::Connect(Settings(), {"not numeric", 1}, Uuid::Random(), 1,
                                     Deadline::After(kFloorWait)));
}

TEST_F(FloorConnecting, ListensWithinTheRangeThatIsSet) {
  Config config = Settings();
  config.port_first = config.port_last = listener_->port();
  const auto taken = FloorListener::Open(config, "127.0.0.1");
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code(), Code::kUnavailable);
  EXPECT_THAT(taken.error().message(),
              HasSubstr("no port of " + std::to_string(listener_->port()) + "-"));
  EXPECT_THAT(taken.error().message(), HasSubstr("widen port_range"));
}

}  // namespace
}  // namespace ferry::tools
