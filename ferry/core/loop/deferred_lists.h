// The deferred work of one event loop.
#pragma once
#include <cstddef>

#include "ferry/core/loop/event_loop.h"

namespace ferry {

// Work that objects have requested for a later moment of the turn, in the order of the requests.
// One thread at a time. Work may request and cancel work while it runs.
class DeferredLists {
 public:
  using Defer = EventLoop::Defer;
  using Deferred = EventLoop::Deferred;

  // No effect for work that waits for that moment already.
  void Request(Defer when, Deferred* deferred);
  // For all moments, and also for work of the batch that is running.
  static void Cancel(Deferred* deferred);

  // Runs the work for this moment, and then what was deferred to the turn's end. Returns whether
  // there was any for this moment. Work that requests itself again waits for its next moment.
  bool Run(Defer when);
  bool empty(Defer when) const noexcept { return waiting_[Index(when)].empty(); }
  // Whether there is work that must run before the loop sleeps, however busy it is.
  bool has_soon() const noexcept { return !empty(Defer::kTurnEnd) || !empty(Defer::kNextTurn); }
  // Drops everything without running it.
  void Clear();

 private:
  static std::size_t Index(Defer when) noexcept { return static_cast<std::size_t>(when); }

  Deferred::List waiting_[3];  // by Defer
  Deferred::List due_[3];      // taken from waiting_ and now running
};

}  // namespace ferry
