// Pauses accepting while the admission table is full.
#pragma once
#include <utility>

#include "ferry/core/loop/event_loop.h"
#include "ferry/core/unique_function.h"
#include "ferry/net/admission.h"

namespace ferry::net {

// Pauses accepting while an Admission has no room and resumes when it has. Lives on one loop;
// destroy it on that loop, or after the loop has stopped, before the table.
class AcceptGate {
 public:
  using SetPaused = UniqueFunction<void(bool paused)>;

  AcceptGate(EventLoop* loop, const Admission* table, SetPaused set_paused)
      : loop_(loop), table_(table), set_paused_(std::move(set_paused)) {}
  ~AcceptGate() { CancelTimer(); }
  AcceptGate(const AcceptGate&) = delete;
  AcceptGate& operator=(const AcceptGate&) = delete;

  // Call after every change of the table. Calls `set_paused` only when the state changes, and sets
  // a timer for the moment at which the table will have room.
  void UpdateOnLoop();

 private:
  void CancelTimer();

  EventLoop* const loop_;
  const Admission* const table_;
  SetPaused set_paused_;
  bool paused_ = false;
  EventLoop::TimerId timer_ = 0;
  Clock::time_point when_;  // of the timer
};

}  // namespace ferry::net
