// Background tasks: work that is too slow for an event loop.
#pragma once
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "ferry/core/result.h"
#include "ferry/core/unique_function.h"

namespace ferry {

// Runs background tasks that would block a loop for too long, one after the other in the order of
// Post(), on a thread that starts with the first task. Any thread.
class BackgroundTasks {
 public:
  using Task = UniqueFunction<void()>;

  BackgroundTasks() = default;
  // Blocks until all queued tasks, and the tasks that they queue, have run.
  ~BackgroundTasks();
  BackgroundTasks(const BackgroundTasks&) = delete;
  BackgroundTasks& operator=(const BackgroundTasks&) = delete;

  // Never blocks on a task. Errors: kUnavailable (no thread), for the first task only; the thread
  // then exists until destruction.
  Status Post(Task task);

 private:
  void Run();

  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  bool stopping_ = false;
  std::jthread thread_;
};

}  // namespace ferry
