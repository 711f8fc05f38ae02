// Parts of a connection's engine over lanes that have no sockets.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ferry/transfer/connection/connection_state.h"
#include "ferry/transfer/connection/lane_group.h"
#include "ferry/transfer/connection/lane_monitor.h"
#include "ferry/transfer/connection/operation_runner.h"
#include "ferry/transfer/gpu/gpu_sharing.h"
#include "ferry/transfer/lane/message_queue.h"
#include "ferry/transfer/testing/linked_endpoints.h"

namespace ferry::transfer {

// The parts of a connection, put together as ConnectionCore does it, on one loop that the test
// drives. The lanes were never adopted: they queue what they get and send nothing.
class LoneLanes final : private LaneOwner {
 public:
  explicit LoneLanes(const Config& config, std::size_t lanes = 3)
      : shares_(lanes, FirstBulkLaneOf(lanes)),
        common_(config, Context(lanes), loop_.get(),
                [this](const Error& error) { FailNow(error); }),
        monitor_(&common_, &lanes_),
        operations_(&common_, &lanes_, &monitor_, &messages_),
        messages_(&common_.context, loop_.get()),
        lanes_(common_.context, std::vector<EventLoop*>(lanes, loop_.get())) {
    monitor_.records().Set(std::vector<net::LaneInfo>(lanes));
    common_.state.Start();
  }

  ConnectionCommon& common() { return common_; }
  LaneMonitor& monitor() { return monitor_; }
  OperationRunner& operations() { return operations_; }
  LaneGroup& lanes() { return lanes_; }
  // Why the connection was to fail; nullopt: it was not.
  const std::optional<Error>& failed() const { return failed_; }

  // Runs what is posted, and what that posts.
  void Drive() {
    for (int turn = 0; turn < 50; ++turn) loop_->DriveOnce();
  }
  template <class Done>
  bool DriveUntil(const Done& done, Deadline deadline = Soon()) {
    return loop_->DriveUntil(done, deadline, microseconds(0));
  }

 private:
  LaneContext Context(std::size_t lanes) {
    LaneContext context;
    context.regions = &regions_;
    context.memory = &memory_;
    context.shares = &shares_;
    context.owner = this;
    context.messages = &messages_;
    context.peer_name = "peer:1";
    context.window_bytes = 1 << 20;
    context.lanes = lanes;
    context.bulk_lanes = lanes - FirstBulkLaneOf(lanes);
    return context;
  }

  void FailNow(const Error& error) {
    if (failed_) return;
    failed_ = error;
    (void)common_.state.Lose(error);
    common_.state.End();
    loop_->NotifyWaiters();
  }

  std::shared_ptr<void> KeepAlive() override { return nullptr; }
  void OnLaneUp(std::uint32_t /*index*/, net::LaneInfo /*info*/) override {}
  void LaneLost(std::uint32_t /*index*/, const Error& /*error*/,
                std::optional<net::LaneLoss> /*loss*/) override {}
  void LaneFrozen(std::uint32_t /*index*/, bool /*was_heard*/) override {}
  void LaneFailed(const Error& /*error*/) override {}
  void PeerClosedLane(std::uint32_t /*index*/, const Error& /*error*/) override {}
  void PeerGaveUpLane(std::uint32_t index) override { monitor_.OnGivenUp(index); }
  void PostLaneClosed(std::uint32_t /*index*/) override {}
  void SetLanePath(std::uint32_t /*index*/, const net::PathStats& /*path*/) override {}
  void CountRefusal(const Error& /*error*/) override {}
  void CountMismatch() override {}

  const std::unique_ptr<EventLoop> loop_ = Must(EventLoop::Create());
  RegionTable regions_;
  HeldMemory memory_;
  LaneShares shares_;
  ConnectionCommon common_;
  LaneMonitor monitor_;
  OperationRunner operations_;
  MessageQueue messages_;
  LaneGroup lanes_;
  std::optional<Error> failed_;
};

}  // namespace ferry::transfer
