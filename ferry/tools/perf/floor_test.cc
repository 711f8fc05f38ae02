// Tests of the plain-socket copy.

#include "ferry/tools/perf/floor.h"

#include <gtest/gtest.h>

#include <future>
#include <numeric>

namespace ferry::tools {
namespace {

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

}  // namespace
}  // namespace ferry::tools
