// The timers of one event loop, by time.
#pragma once
#include <cstdint>
#include <map>
#include <utility>

#include "ferry/core/deadline.h"
#include "ferry/core/unique_function.h"

namespace ferry {

// Tasks that are due at a point in time; those of the same time run in the order of Add(). One
// thread at a time. Tasks may add and cancel timers.
class TimerQueue {
 public:
  using Id = std::uint64_t;
  using Task = UniqueFunction<void()>;
  using Timers = std::map<std::pair<Clock::time_point, Id>, Task>;

  // A timer that a timer adds for now runs in the next RunDue(): timers must not keep the loop from
  // its other work.
  Id Add(Clock::time_point when, Task task);
  // No effect for a timer that has run.
  void Cancel(Id id);

  bool empty() const noexcept { return timers_.empty(); }
  // When the first timer is due; max() without one.
  Clock::time_point next() const noexcept {
    return empty() ? Clock::time_point::max() : timers_.begin()->first.first;
  }
  // Runs the timers that are due at `now`, and returns whether there was one.
  bool RunDue(Clock::time_point now);
  // Removes all timers. The caller destroys their tasks.
  Timers TakeAll();

 private:
  Timers timers_;
  std::map<Id, Clock::time_point> times_;
  Id next_id_ = 1;
  // While timers run: the time up to which they are due.
  Clock::time_point run_to_ = Clock::time_point::min();
};

}  // namespace ferry
