// The epoll loop that lanes, listeners and timers run on.
#pragma once
#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "ferry/core/deadline.h"
#include "ferry/core/function_ref.h"
#include "ferry/core/loop/owner_list.h"
#include "ferry/core/result.h"
#include "ferry/core/unique_function.h"

namespace ferry {

class DeferredLists;
class LoopOwnership;

// Limits how many workers may poll at once among those that share this object: if all of them poll,
// they take the cores that copies need. Any thread.
class SpinPermits {
 public:
  explicit SpinPermits(int count) : free_(count) {}
  bool Take() noexcept {
    int free = free_.load(std::memory_order_relaxed);
    while (free > 0 && !free_.compare_exchange_weak(free, free - 1, std::memory_order_relaxed)) {
    }
    return free > 0;
  }
  void Give() noexcept { free_.fetch_add(1, std::memory_order_relaxed); }

 private:
  std::atomic<int> free_;
};

// An epoll loop that one thread at a time drives: its own worker, or an application thread that
// waits for something the loop will do (caller-driven progress; docs/threading.md). While an
// application thread returns often, the worker stays parked, so that a wake-up goes straight to the
// thread that wants the answer: on the 2-core machine one wake-up costs 45-50 us, and two would
// double the latency of a small message.
//
// Whatever mix of callers there is, the loop has no owner for at most 2 * linger: only whole
// turns, which look at timers and descriptors, keep the worker parked.
//
// Methods marked OnLoop may be called only by the owner, that is from a callback of this loop.
class EventLoop {
 public:
  using Task = UniqueFunction<void()>;
  using TimerId = std::uint64_t;

  // Receives the epoll events of one file descriptor. Edge-triggered: after a call the handler must
  // read or write until EAGAIN, or request kNextTurn.
  class Handler {
   public:
    virtual void OnEvents(std::uint32_t events) = 0;

   protected:
    ~Handler() = default;
  };

  // When deferred work runs. kTurnEnd: at the end of the current batch of callbacks (many small
  // frames become one system call). kNextTurn: in the next turn, which does not sleep (other work
  // goes first). kIdle: when the loop has nothing else to do, or has been busy for many turns (an
  // acknowledgement that may be carried by a reply).
  enum class Defer { kTurnEnd, kNextTurn, kIdle };
  class Deferred {
   public:
    virtual void RunDeferredOnLoop(Defer when) = 0;

   protected:
    ~Deferred() = default;

   private:
    friend class DeferredLists;
    using List = OwnerList<Deferred>;
    List::Node nodes_[3] = {List::Node(this), List::Node(this), List::Node(this)};  // by Defer
  };

  // While one lives, a thread waits for the loop without driving it, for example in poll() on a
  // descriptor. The worker then drives whenever no application thread does, and does not linger.
  // May outlive the loop.
  class PassiveWait {
   public:
    PassiveWait() = default;
    PassiveWait(PassiveWait&& other) noexcept = default;
    PassiveWait& operator=(PassiveWait&& other) noexcept {
      End();
      count_ = std::move(other.count_);
      return *this;
    }
    ~PassiveWait() { End(); }

   private:
    friend class LoopOwnership;
    explicit PassiveWait(std::shared_ptr<std::atomic<int>> count) : count_(std::move(count)) {}
    void End() noexcept {
      if (count_ != nullptr) std::exchange(count_, nullptr)->fetch_sub(1);
    }
    std::shared_ptr<std::atomic<int>> count_;  // the loop's
  };

  // `linger`: how long the worker stays parked after a turn of an application thread. Each of its
  // timed waits costs about 5 us.
  static Result<std::unique_ptr<EventLoop>> Create(microseconds linger = milliseconds(1));
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // `spin`: how long the worker polls after its last work before it sleeps. With `permits`, which
  // must outlive the loop, it polls only while it holds one. Errors: kUnavailable (threads).
  Status StartWorker(const char* thread_name, microseconds spin = microseconds(0),
                     SpinPermits* permits = nullptr);
  // Any thread but the owner. Stops and joins the worker, and blocks until the application threads
  // in DriveUntil and PostOrRun have left: no callback runs afterwards. Queued tasks, tasks posted
  // later and timers are destroyed without running.
  void Stop();

  // Any thread. Runs `task` on the loop; wakes the owner if it sleeps in epoll_wait. With a parked
  // worker and no waiting thread, the task starts after at most 2 * `linger`.
  void Post(Task task);
  // Any thread. As Post, except that the calling thread runs the task itself, before this returns,
  // if no callback is running (the owner sleeps, or there is none) and no task is queued. This
  // saves a hand-over for small data that should be sent at once. It does not count as a turn.
  void PostOrRun(Task task);

  // Any thread but the owner. Drives the loop, or waits for the thread that does, until `done()`
  // or the deadline. `done` must be cheap: it is called often, by this thread and, while this
  // thread waits for another owner, by any notifying thread under the loop's mutex. Polls for
  // `spin` before sleeping. Returns done().
  bool DriveUntil(FunctionRef<bool()> done, Deadline deadline, microseconds spin);
  // Any thread but the owner. Handles what is ready without sleeping; does nothing when another
  // application thread drives. Asks a driving worker to leave, so that a thread that keeps polling
  // drives the loop alone, unless there are passive waits.
  void DriveOnce();
  // Any thread. Wakes the threads in DriveUntil whose condition has become true.
  void NotifyWaiters();
  // Any thread.
  PassiveWait BeginPassiveWait();

  // Any thread. Whether it is the owner: it runs a callback of this loop.
  bool InLoop() const noexcept;

  // OnLoop. One handler per descriptor. `handler` must stay alive until UnwatchOnLoop, which also
  // drops events that were already fetched for it. Errors: those of epoll_ctl(2).
  Status WatchOnLoop(int fd, std::uint32_t events, Handler* handler);
  void UnwatchOnLoop(int fd, Handler* handler);
  TimerId AddTimerOnLoop(Clock::time_point when, Task task);
  void CancelTimerOnLoop(TimerId id);
  // Runs `deferred` once at that moment, however often it was requested.
  void DeferOnLoop(Defer when, Deferred* deferred);
  void CancelDeferredOnLoop(Deferred* deferred);

 private:
  class Impl;
  explicit EventLoop(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace ferry
