// Tests the watch over lanes that have no sockets.
#include "ferry/transfer/connection/lane_monitor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ferry/transfer/testing/lone_lanes.h"

namespace ferry::transfer {
namespace {

using ::testing::HasSubstr;

const Error kNoRoute(Code::kPeerLost, "no route");

Config QuickBeats() {
  Config config;
  config.heartbeat_interval = milliseconds(2);
  config.lane_timeout = milliseconds(4);
  config.peer_timeout = milliseconds(20);
  return config;
}

TEST(LaneMonitor, ASilentPeerEndsTheConnection) {
  LoneLanes lanes(QuickBeats());
  lanes.monitor().Start();
  EXPECT_TRUE(lanes.DriveUntil([&] { return lanes.failed().has_value(); }));
  EXPECT_THAT(lanes.failed()->message(), HasSubstr("nothing was heard from peer:1"));
  EXPECT_EQ(lanes.common().stats.Traffic().lane_stalls, 3u);
}

TEST(LaneMonitor, AnAbandonedConnectionEndsSooner) {
  Config config = QuickBeats();
  config.peer_timeout = milliseconds(600000);
  LoneLanes lanes(config);
  lanes.monitor().Start();
  EXPECT_TRUE(lanes.monitor().OnLost(0, kNoRoute, net::LaneLoss::kReset));
  for (const std::uint32_t lane : {1U, 2U}) {
    lanes.monitor().SetDown(lane);
    lanes.monitor().OnFrozen(lane, /*was_heard=*/true);
  }
  EXPECT_TRUE(lanes.DriveUntil([&] { return lanes.failed().has_value(); }));
  EXPECT_THAT(lanes.failed()->message(), HasSubstr("every lane to peer:1 was reset"));
}

TEST(LaneMonitor, AResetOfEveryLaneIsTheEndOfThePeersProcess) {
  LoneLanes lanes(Config{});
  EXPECT_TRUE(lanes.monitor().OnLost(0, kNoRoute, net::LaneLoss::kReset));
  EXPECT_TRUE(lanes.monitor().OnLost(1, kNoRoute, net::LaneLoss::kReset));
  EXPECT_FALSE(lanes.monitor().AllDown());
  EXPECT_FALSE(lanes.monitor().OnLost(2, kNoRoute, net::LaneLoss::kReset));
  EXPECT_TRUE(lanes.monitor().AllDown());
  EXPECT_EQ(lanes.common().stats.Traffic().lanes_lost, 3u);
}

TEST(LaneMonitor, AReplacedLaneIsUpAndRecorded) {
  LoneLanes lanes(Config{});
  LaneMonitor& monitor = lanes.monitor();
  monitor.SetDown(1);
  EXPECT_FALSE(monitor.lives().up(1));
  EXPECT_FALSE(monitor.records().Counters()[1].up);
  net::LaneInfo info;
  info.interface = "eth1";
  monitor.OnReplaced(1, info);
  EXPECT_TRUE(monitor.lives().up(1));
  EXPECT_EQ(monitor.records().Infos()[1].interface, "eth1");
  EXPECT_EQ(lanes.common().stats.Traffic().lanes_replaced, 1u);
}

TEST(LaneMonitor, AStoppedOneEndsNothing) {
  LoneLanes lanes(QuickBeats());
  lanes.monitor().Start();
  lanes.monitor().Stop();
  EXPECT_FALSE(lanes.DriveUntil([&] { return lanes.failed().has_value(); },
                                Deadline::After(milliseconds(60))));
}

}  // namespace
}  // namespace ferry::transfer
