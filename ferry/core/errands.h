// Background tasks: work that is too slow for an event loop.
#pragma once
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "ferry/core/result.h"
#include "ferry/core/unique_function.h"

namespace ferry {

// A thread for what takes long and must not keep a loop waiting, begun with the first task. Tasks
// run one after the other, in their order. Any thread.
class Errands {
 public:
  using Task = UniqueFunction<void()>;

  Errands() = default;
  // Runs what is queued, and what that queues.
  ~Errands();
  Errands(const Errands&) = delete;
  Errands& operator=(const Errands&) = delete;

  // Errors: kUnavailable (threads), for the first task; the thread then stays.
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
