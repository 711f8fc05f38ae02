// Threads for calls that block: dialing and closing of connections.
#pragma once
#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <thread>

namespace ferry::nixl {

// Runs tasks on threads that live while there are tasks. Any thread.
class Tasks {
 public:
  Tasks() = default;
  ~Tasks() { Stop(); }
  Tasks(const Tasks&) = delete;
  Tasks& operator=(const Tasks&) = delete;

  // Tasks that nobody waits for share a few threads. An urgent one has its own, up to a limit, and
  // goes before the others. Whether it will run: it is dropped after Stop(), and where there is no
  // thread at all.
  bool Run(std::function<void()> task, bool urgent);
  // Drops tasks that have not begun, and blocks until the others have ended.
  void Stop();

 private:
  struct Thread {
    std::thread thread;
    bool ended = false;
  };

  void Work(Thread* self);
  void JoinEndedLocked();

  std::mutex mutex_;
  std::deque<std::function<void()>> tasks_;  // under mutex_
  std::list<Thread> threads_;                // under mutex_
  std::size_t running_ = 0;                  // under mutex_
  bool stopped_ = false;                     // under mutex_
};

}  // namespace ferry::nixl
