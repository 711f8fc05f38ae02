#pragma once
#include <memory>
#include <optional>

#include "ferry/net/provider.h"

namespace ferry::transfer {

// A lane on its way from one loop to another: nothing is read from it until its new user is there.
// Made on the loop that the lane belongs to; from then on it belongs to the other.
class ParkedLane final : private net::LaneHandler {
 public:
  ParkedLane(std::unique_ptr<net::Lane> lane, EventLoop* to) : lane_(std::move(lane)) {
    lane_->Attach(to, this);
  }

  // OnLoop of the new one, which attaches it.
  std::unique_ptr<net::Lane> Take() { return std::move(lane_); }
  // It has failed since. OnLoop.
  const std::optional<Error>& failure() const noexcept { return failure_; }

 private:
  Result<net::Placement> OnFrame(std::span<const std::byte> /*meta*/,
                                 std::uint64_t /*payload_bytes*/) override {
    return net::Placement{net::Placement::Action::kPause, {}};
  }
  Status OnPayload() override { return Ok(); }
  void OnSent(net::OutFrame* /*frame*/) override {}
  void OnClosed(const Error& error) override { failure_ = error; }

  std::unique_ptr<net::Lane> lane_;
  std::optional<Error> failure_;
};

}  // namespace ferry::transfer
