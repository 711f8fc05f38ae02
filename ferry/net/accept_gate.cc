// Pauses and resumes accepting as the admission table fills and empties.
#include "ferry/net/accept_gate.h"

namespace ferry::net {

void AcceptGate::UpdateOnLoop() {
  const auto now = Clock::now();
  const auto when = table_->WhenRoom(now);
  // Nothing else wakes the loop when a grace period ends, so a timer asks again at that time.
  const bool paused = when > now;
  // Left alone where it is set for the same time already: this runs for every accepted connection.
  if (timer_ == 0 || when != when_ || !paused) {
    CancelTimer();
    if (paused) {
      when_ = when;
      timer_ = loop_->AddTimerOnLoop(when, [this] {
        timer_ = 0;
        UpdateOnLoop();
      });
    }
  }
  if (std::exchange(paused_, paused) != paused) set_paused_(paused);
}

void AcceptGate::CancelTimer() {
  if (timer_ != 0) loop_->CancelTimerOnLoop(std::exchange(timer_, 0));
}

}  // namespace ferry::net
