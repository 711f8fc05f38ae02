#pragma once
#include <sys/epoll.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/fd.h"
#include "ferry/core/function_ref.h"
#include "ferry/core/result.h"
#include "ferry/core/unique_function.h"

namespace ferry {

// How many workers may poll at once, of all that share these: where all of them do, they take from
// each other the cores that copies need. Any thread.
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

// An epoll loop that one thread at a time may drive: its own worker, or an application thread that
// waits for something the loop will do (docs/threading.md, "The seat"). While an application
// thread comes back often, the worker stays parked, so that a wake-up goes straight to the thread
// that wants the answer: on the 2-core machine one wake-up costs 45-50 us, and two would double
// the latency of a small message.
//
// Methods marked OnLoop may be called only by the driver, that is from a callback of this loop.
class EventLoop {
 public:
  using Task = UniqueFunction<void()>;
  using TimerId = std::uint64_t;

  // Receives the epoll events of one file descriptor. Edge-triggered: after a call the handler must
  // read or write until EAGAIN, or ask for kNextTurn.
  class Handler {
   public:
    virtual void OnEventsOnLoop(std::uint32_t events) = 0;

   protected:
    ~Handler() = default;
  };

  // Work that is put off: to the end of the batch of callbacks under way (many small frames become
  // one system call), to the next turn, which then does not sleep (others come first), or until the
  // loop has nothing better to do, or has been busy for many turns (an acknowledgement that may yet
  // ride on a reply).
  enum class Defer { kTurnEnd, kNextTurn, kIdle };
  class Deferred {
   public:
    virtual void RunDeferredOnLoop(Defer when) = 0;

   protected:
    ~Deferred() = default;
  };

  // `linger`: how long the worker stays parked after an application thread has left the seat. Its
  // timed waits cost about 5 us each.
  static Result<std::unique_ptr<EventLoop>> Create(microseconds linger = milliseconds(1));
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // `spin`: how long the worker polls after it had something to do, before it sleeps; with
  // `permits`, which outlive the loop, only while it has one. Errors: kUnavailable (threads).
  Status StartWorker(const char* thread_name, microseconds spin = microseconds(0),
                     SpinPermits* permits = nullptr);
  // Any thread but the driver. Stops and joins the worker, and waits until the application threads
  // in DriveUntil have left: no callback runs afterwards. Tasks still queued,
  // tasks posted later and timers are destroyed without running.
  void Stop();

  // Any thread. Runs `task` on the loop; wakes the driver if it sleeps in epoll_wait. With the
  // worker parked and nobody waiting the task starts after `linger` at the latest.
  void Post(Task task);
  // Any thread. As Post, but when the seat is free the calling thread runs the queue itself before
  // this returns: no hand-over, for small things that should be on the wire at once.
  void PostOrRun(Task task);

  // Any thread but the driver. Drives the loop, or waits for the thread that does, until `done()`
  // or the deadline. `done` is called by this thread only, often, and must be cheap. Polls without
  // sleeping for `spin` first. Returns done().
  bool DriveUntil(FunctionRef<bool()> done, Deadline deadline, microseconds spin);
  // Any thread but the driver. Handles what is ready without sleeping; does nothing when another
  // application thread drives.
  void DriveOnce();
  // Tells threads in DriveUntil to look at their condition again. Any thread.
  void NotifyWaiters();

  bool InLoop() const noexcept {
    return driver_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }

  // OnLoop. `handler` must stay alive until UnwatchOnLoop; events already fetched for it are
  // dropped then.
  Status WatchOnLoop(int fd, std::uint32_t events, Handler* handler);
  void UnwatchOnLoop(int fd, Handler* handler);
  TimerId AddTimerOnLoop(Clock::time_point when, Task task);
  void CancelTimerOnLoop(TimerId id);
  // Runs `deferred` once at that moment. A second request before that is the caller's to avoid.
  void DeferOnLoop(Defer when, Deferred* deferred);
  void CancelDeferredOnLoop(Deferred* deferred);

 private:
  explicit EventLoop(microseconds linger) : linger_(linger) {}
  void WorkerMain();
  void WorkerSession(std::unique_lock<std::mutex>& lock);
  void TakeSeat() noexcept;
  void LeaveSeat(std::unique_lock<std::mutex>& lock);
  void AwaitSeat(std::unique_lock<std::mutex>& lock, Deadline deadline);
  void EndVisit(std::unique_lock<std::mutex>& lock);
  void KickLocked();
  // One turn: queue, timers, epoll (sleeping at most until `wake`, and only if nothing was done and
  // nothing is put off), handlers. False where there was nothing to do.
  bool RunTurn(Deadline wake);
  bool RunQueue();
  bool RunTimers();
  std::vector<Deferred*>& ListOf(Defer when);
  bool RunDeferred(Defer when);
  bool PollEvents(Deadline wake);
  int SleepMillis(Deadline wake);
  void Push(Task task);

  const microseconds linger_;
  microseconds spin_{0};  // the worker's
  SpinPermits* spin_permits_ = nullptr;
  UniqueFd epoll_;
  UniqueFd wake_;

  // The seat.
  std::mutex seat_mutex_;
  std::condition_variable seat_free_;    // application threads wait here
  std::condition_variable worker_wake_;  // the parked worker waits here
  bool seated_ = false;
  bool worker_seated_ = false;
  std::atomic<bool> worker_kicked_{false};  // somebody wants the worker to leave the seat
  std::uint64_t seat_uses_ = 0;
  std::atomic<int> visitors_{0};  // application threads inside DriveUntil or DriveOnce
  std::atomic<std::thread::id> driver_{};
  std::atomic<bool> stopping_{false};
  std::thread worker_;

  // The queue.
  std::mutex queue_mutex_;
  std::vector<Task> queue_;
  bool stopped_ = false;  // under queue_mutex_
  std::atomic<bool> queued_{false};
  std::atomic<bool> sleeping_{false};

  // Driver only.
  std::vector<Task> running_;
  std::vector<Deferred*> turn_end_;
  std::vector<Deferred*> next_turn_;
  std::vector<Deferred*> idle_;
  int busy_turns_ = 0;  // since idle_ was last run or empty
  std::map<std::pair<Clock::time_point, TimerId>, Task> timers_;
  std::map<TimerId, Clock::time_point> timer_times_;
  TimerId next_timer_ = 1;
  std::vector<epoll_event> events_;
  int ready_ = 0;  // events_[0..ready_) are being handled
};

}  // namespace ferry
