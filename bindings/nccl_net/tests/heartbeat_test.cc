// Tests of signs of life, without a network.
#include "bindings/nccl_net/heartbeat.h"

#include <gtest/gtest.h>

#include <vector>

#include "bindings/nccl_net/wire.h"
#include "ferry/core/testing/event_loop_helpers.h"

namespace ferry::nccl_net {
namespace {

class SilentLane final : public net::Lane {
 public:
  void Attach(EventLoop* /*loop*/, net::LaneHandler* /*handler*/) override {}
  void Send(net::OutFrame* frame) override {
    // Heartbeats are the only frames here.
    auto* const heartbeat = static_cast<Frame*>(frame);
    sent.push_back(heartbeat);
    if (sends_at_once) heartbeat->sent->store(true);
  }
  void Resume() override {}
  void DiscardRest() override {}
  void Close(net::Closing /*how*/) override {}
  void SetMaxMeta(std::size_t /*bytes*/) override {}
  net::LaneInfo Info() const override { return {}; }
  std::uint64_t BytesReceived() const override { return received += heard_per_beat; }

  std::vector<Frame*> sent;
  bool sends_at_once = true;
  mutable std::uint64_t received = 0;
  std::uint64_t heard_per_beat = 0;
};

class HeartbeatTest : public ::testing::Test {
 protected:
  HeartbeatTest() {
    config_.heartbeat_interval = milliseconds(1);
    config_.peer_timeout = milliseconds(5);
  }
  void Start() {
    loop_->PostOrRun([this] {
      heartbeat_.StartOnLoop(&lane_, [this](int heartbeats) { silences_.push_back(heartbeats); });
    });
  }

  Config config_;
  std::unique_ptr<EventLoop> loop_ = MakeLoop();
  SilentLane lane_;
  std::vector<int> silences_;
  Heartbeat heartbeat_{loop_.get(), &config_};
};

TEST_F(HeartbeatTest, ReportsAPeerThatIsSilentForLongerThanTheTimeoutOnce) {
  Start();
  ASSERT_TRUE(Drive(*loop_, [&] { return !silences_.empty(); }));
  EXPECT_EQ(silences_, std::vector<int>{6});
  ASSERT_EQ(lane_.sent.size(), 5U);
  const auto beat = LoadWire<BeatWire>(lane_.sent[0]->meta);
  ASSERT_TRUE(beat);
  EXPECT_EQ(beat->type, FrameType::kBeat);
}

TEST_F(HeartbeatTest, GoesOnWhileAnythingIsHeard) {
  lane_.heard_per_beat = 1;
  Start();
  ASSERT_TRUE(Drive(*loop_, [&] { return lane_.sent.size() >= 20; }));
  EXPECT_TRUE(silences_.empty());
}

TEST_F(HeartbeatTest, SendsNoSecondFrameWhileTheFirstIsQueued) {
  lane_.sends_at_once = false;
  Start();
  ASSERT_TRUE(Drive(*loop_, [&] { return !silences_.empty(); }));
  EXPECT_EQ(lane_.sent.size(), 1U);
}

TEST_F(HeartbeatTest, StopsAtOnceAndMayBeStoppedAgain) {
  lane_.heard_per_beat = 1;
  Start();
  ASSERT_TRUE(Drive(*loop_, [&] { return lane_.sent.size() >= 2; }));
  const std::size_t sent = lane_.sent.size();
  bool later = false;
  loop_->PostOrRun([&] {
    heartbeat_.StopOnLoop();
    heartbeat_.StopOnLoop();
    loop_->AddTimerOnLoop(Clock::now() + milliseconds(20), [&] { later = true; });
  });
  ASSERT_TRUE(Drive(*loop_, [&] { return later; }));
  EXPECT_EQ(lane_.sent.size(), sent);
}

}  // namespace
}  // namespace ferry::nccl_net
