// The tasks that threads post to one event loop.
#pragma once
#include <atomic>
#include <cstddef>
#include <mutex>
#include <vector>

#include "ferry/core/unique_function.h"

namespace ferry {

// Tasks run in the order in which they were pushed. Methods are for the thread that drives the
// loop, unless they say otherwise.
class TaskQueue {
 public:
  using Task = UniqueFunction<void()>;

  // Any thread. After Close() the task is destroyed instead.
  void Push(Task task);
  // Any thread. Whether tasks were pushed since RunSome() last took some.
  bool has_new() const noexcept { return queued_.load(); }
  // Whether no task is left to run.
  bool empty() const noexcept { return !has_new() && running_.empty(); }

  // Runs at most `max` tasks, and returns whether there was one. Tasks that are pushed meanwhile
  // wait for the next call.
  bool RunSome(std::size_t max);
  // Destroys the remaining tasks without running them, and those that are pushed from here on.
  void Close();

 private:
  std::mutex mutex_;
  std::vector<Task> queue_;  // under mutex_
  bool closed_ = false;      // under mutex_
  std::atomic<bool> queued_{false};

  std::vector<Task> running_;  // taken from queue_; the first next_ have run
  std::size_t next_ = 0;
};

}  // namespace ferry
