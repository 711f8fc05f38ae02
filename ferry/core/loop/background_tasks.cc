// The thread that runs background tasks in order.
#include "ferry/core/loop/background_tasks.h"

#include <utility>

#include "ferry/core/loop/thread.h"

namespace ferry {

// Tasks that were posted still run: Run() looks at stopping_ only when none is left to wait for.
BackgroundTasks::~BackgroundTasks() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

Status BackgroundTasks::Post(Task task) {
  {
    const std::lock_guard lock(mutex_);
    // With the first task, so that endpoints without GPUs have no such thread.
    if (!thread_.joinable()) {
      FERRY_TRY_ASSIGN(thread_, StartThread<std::jthread>("long tasks", [this] { Run(); }));
    }
    tasks_.push_back(std::move(task));
  }
  changed_.notify_one();
  return Ok();
}

void BackgroundTasks::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // destroy the task's captures before the lock is taken again
    lock.lock();
  }
}

}  // namespace ferry
