// Signs of life on one lane.
#pragma once
#include <atomic>
#include <cstdint>

#include "bindings/nccl_net/frame.h"
#include "ferry/core/config.h"
#include "ferry/core/event_loop.h"
#include "ferry/core/unique_function.h"
#include "ferry/net/provider.h"

namespace ferry::nccl_net {

// Sends a heartbeat once per Config::heartbeat_interval, and notices when the peer is silent for
// longer than Config::peer_timeout. Lives on the loop of its lane; the lane's handler marks sent
// frames by Frame::sent.
class Heartbeat {
 public:
  using Silent = UniqueFunction<void(int heartbeats)>;

  // Both must outlive it.
  Heartbeat(EventLoop* loop, const Config* config);

  // OnLoop. The lane must not end before StopOnLoop(). `silent` is called at most once, with how
  // many heartbeats the silence has lasted; no heartbeat follows it.
  void StartOnLoop(net::Lane* lane, Silent silent);
  // OnLoop. May be called again, and without a start.
  void StopOnLoop();

 private:
  void PlanOnLoop();
  void BeatOnLoop();

  EventLoop* const loop_;
  const Config* const config_;
  net::Lane* lane_ = nullptr;
  Silent silent_;
  Frame frame_;
  std::atomic<bool> is_sent_{true};
  EventLoop::TimerId timer_ = 0;
  std::uint64_t heard_bytes_ = 0;
  int silent_beats_ = 0;
};

}  // namespace ferry::nccl_net
