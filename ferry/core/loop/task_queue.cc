// Pushing and running tasks.
#include "ferry/core/loop/task_queue.h"

#include <algorithm>
#include <utility>

namespace ferry {

void TaskQueue::Push(Task task) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;  // the task is destroyed after the lock
  queue_.push_back(std::move(task));
  queued_.store(true);
}

bool TaskQueue::RunSome(std::size_t max) {
  if (running_.empty() && queued_.load()) {
    const std::lock_guard lock(mutex_);
    running_.swap(queue_);
    queued_.store(false);
  }
  if (running_.empty()) return false;
  const std::size_t end = std::min(running_.size(), next_ + max);
  while (next_ < end) {
    Task task = std::move(running_[next_++]);
    task();
  }
  if (end == running_.size()) {
    running_.clear();
    next_ = 0;
  }
  return true;
}

void TaskQueue::Close() {
  // Swapped out first: destroying the tasks may push again.
  const auto dropped_running = std::exchange(running_, {});
  std::vector<Task> dropped;
  const std::lock_guard lock(mutex_);
  closed_ = true;
  dropped.swap(queue_);
}

}  // namespace ferry
