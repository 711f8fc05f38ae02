// Adding, cancelling and running timers.
#include "ferry/core/loop/timer_queue.h"

namespace ferry {

TimerQueue::Id TimerQueue::Add(Clock::time_point when, Task task) {
  if (when <= run_to_) when = run_to_ + Clock::duration(1);
  const Id id = next_id_++;
  timers_.emplace(std::make_pair(when, id), std::move(task));
  times_.emplace(id, when);
  return id;
}

void TimerQueue::Cancel(Id id) {
  const auto it = times_.find(id);
  if (it == times_.end()) return;
  timers_.erase(std::make_pair(it->second, id));
  times_.erase(it);
}

bool TimerQueue::RunDue(Clock::time_point now) {
  run_to_ = now;
  bool ran = false;
  while (next() <= run_to_) {
    auto node = timers_.extract(timers_.begin());
    times_.erase(node.key().second);
    node.mapped()();
    ran = true;
  }
  run_to_ = Clock::time_point::min();
  return ran;
}

TimerQueue::Timers TimerQueue::TakeAll() {
  times_.clear();
  return std::exchange(timers_, {});
}

}  // namespace ferry
