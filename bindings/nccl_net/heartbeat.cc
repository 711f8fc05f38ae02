// Sending heartbeats and counting the peer's silence.
#include "bindings/nccl_net/heartbeat.h"

#include <utility>

#include "bindings/nccl_net/wire.h"

namespace ferry::nccl_net {

Heartbeat::Heartbeat(EventLoop* loop, const Config* config) : loop_(loop), config_(config) {
  StoreWire(BeatWire{}, &frame_.meta);
  frame_.sent = &is_sent_;
}

void Heartbeat::StartOnLoop(net::Lane* lane, Silent silent) {
  lane_ = lane;
  silent_ = std::move(silent);
  PlanOnLoop();
}

void Heartbeat::StopOnLoop() {
  if (timer_ != 0) loop_->CancelTimerOnLoop(std::exchange(timer_, 0));
}

void Heartbeat::PlanOnLoop() {
  timer_ =
      loop_->AddTimerOnLoop(Clock::now() + config_->heartbeat_interval, [this] { BeatOnLoop(); });
}

void Heartbeat::BeatOnLoop() {
  timer_ = 0;
  const std::uint64_t heard = lane_->BytesReceived();
  silent_beats_ = heard == heard_bytes_ ? silent_beats_ + 1 : 0;
  heard_bytes_ = heard;
  // Counted in heartbeats and not by the clock: a process that was stopped has not received
  // anything either.
  if (silent_beats_ * config_->heartbeat_interval > config_->peer_timeout) {
    return silent_(silent_beats_);
  }
  if (is_sent_.exchange(false, std::memory_order_acquire)) lane_->Send(&frame_);
  PlanOnLoop();
}

}  // namespace ferry::nccl_net
