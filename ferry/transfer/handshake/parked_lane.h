// A lane in transit between two event loops.
#pragma once
#include <memory>
#include <optional>

#include "ferry/net/provider.h"

namespace ferry::transfer {

// A lane in transit from one loop to another: nothing is read from it until its new user attaches
// it. Created on the loop that the lane belongs to; from then on it belongs to the other loop.
class ParkedLane final : private net::LaneHandler {
 public:
  ParkedLane(std::unique_ptr<net::Lane> lane, EventLoop* to) : lane_(std::move(lane)) {
    lane_->Attach(to, this);
  }

  // Transfers the lane to its new user, who attaches it. New loop only.
  std::unique_ptr<net::Lane> Take() { return std::move(lane_); }
  // Set if the lane has failed in transit. New loop only.
  const std::optional<Error>& failure() const noexcept { return failure_; }

 private:
  Result<net::Placement> OnFrame(std::span<const std::byte> /*meta*/,
                                 std::uint64_t /*payload_bytes*/) override {
    return net::Placement{net::Placement::Action::kPause, {}};
  }
  Status OnPayload() override { return Ok(); }
  void OnSent(net::OutFrame* /*frame*/) override {}
  void OnClosed(net::LaneLoss /*loss*/, const Error& error) override { failure_ = error; }

  std::unique_ptr<net::Lane> lane_;
  std::optional<Error> failure_;
};

}  // namespace ferry::transfer
