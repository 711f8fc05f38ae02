// The descriptors that one event loop watches, and the wake-up of the thread that waits for them.
#pragma once
#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/fd.h"
#include "ferry/core/function_ref.h"
#include "ferry/core/loop/event_loop.h"
#include "ferry/core/result.h"

namespace ferry {

// An edge-triggered epoll set. Methods are for the thread that drives the loop, unless they say
// otherwise. A guest may call Watch() and Unwatch() while another thread is in Wait().
class EpollSet {
 public:
  using Handler = EventLoop::Handler;

  // Call once, before all others. Errors: those of epoll_create1(2) and eventfd(2).
  Status Open();

  // See EventLoop::WatchOnLoop and UnwatchOnLoop.
  Status Watch(int fd, std::uint32_t events, Handler* handler);
  void Unwatch(int fd, Handler* handler);

  // Call before a Wait() that may sleep. A thread that sets a flag and then calls Wake() wakes the
  // sleeper if the sleeper, after this call, has read the flag as not set: with sequentially
  // consistent accesses at least one of them sees the other's store.
  void AnnounceSleep() noexcept { sleeping_.store(true); }
  // Waits for events until `wake` at most, which timers of the kernel may exceed by 50 us. Returns
  // how many there are; -1 where a signal came.
  int Wait(Deadline wake);
  // The same without waiting.
  int Look();
  // Passes the `count` events of Wait() to their handlers, and calls `after_each`. Returns whether
  // there was one with a handler. The handler is looked up only now, because a guest or another
  // handler may have removed it since Wait() returned.
  bool Handle(int count, FunctionRef<void()> after_each);

  // Any thread. Ends the Wait() of a thread that has announced its sleep.
  void Wake() noexcept;
  // Any thread. Ends the current or else the next Wait().
  void Interrupt() noexcept;

 private:
  struct Watched {
    Handler* handler;
    std::uint32_t generation;
  };

  UniqueFd epoll_;
  UniqueFd wake_;
  std::atomic<bool> sleeping_{false};
  std::unordered_map<int, Watched> watched_;  // by descriptor
  std::uint32_t next_generation_ = 1;
  std::vector<epoll_event> events_;
};

}  // namespace ferry
