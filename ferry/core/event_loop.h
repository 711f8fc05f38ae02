// The epoll loop that lanes, listeners and timers run on.
#pragma once
#include <sys/epoll.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/fd.h"
#include "ferry/core/function_ref.h"
#include "ferry/core/owner_list.h"
#include "ferry/core/result.h"
#include "ferry/core/unique_function.h"

namespace ferry {

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
    friend class EventLoop;
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
    friend class EventLoop;
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

  bool InLoop() const noexcept {
    return owner_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }

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
  // A thread in DriveUntil that waits while another thread drives.
  struct Waiter {
    explicit Waiter(FunctionRef<bool()> until) : done(until) {}
    const FunctionRef<bool()> done;
    std::condition_variable wake;
    bool woken = false;
    OwnerList<Waiter>::Node node{this};
  };
  struct Watch {
    Handler* handler;
    std::uint32_t generation;
  };

  explicit EventLoop(microseconds linger) : linger_(linger) {}
  void WorkerMain();
  void WorkerSession(std::unique_lock<std::mutex>& lock);
  void TakeOwnership(std::unique_lock<std::mutex>& lock);
  void ReleaseOwnership(std::unique_lock<std::mutex>& lock);
  void ShareOwnership();
  void ReclaimOwnership();
  void AwaitOwnership(std::unique_lock<std::mutex>& lock, Waiter* waiter, Deadline deadline);
  void EndCall(std::unique_lock<std::mutex>& lock);
  bool RunAsGuest(Task* task);
  void KickLocked();
  static void WakeLocked(Waiter* waiter);
  void WakeReadyLocked();
  void WakeSuccessorLocked();
  void WakeReady();
  void WakeOwner();
  // One turn: queue, timers, epoll (sleeping until `wake` at most, and only if nothing was done and
  // nothing is deferred), handlers. Returns false where there was nothing to do.
  bool RunTurn(Deadline wake);
  bool RunQueue();
  bool RunTimers();
  Deferred::List& ListOf(Defer when) { return deferred_[static_cast<std::size_t>(when)]; }
  bool RunDeferred(Defer when);
  bool HasSoonDeferred();
  bool PollEvents(Deadline wake);
  Clock::time_point NextTimer() const;
  void Push(Task task);

  const microseconds linger_;
  microseconds spin_{0};  // of the worker
  SpinPermits* spin_permits_ = nullptr;
  UniqueFd epoll_;
  UniqueFd wake_;

  // Loop ownership. An owner that sleeps in epoll_wait shares it: another thread may run one task
  // meanwhile.
  std::mutex ownership_mutex_;
  std::condition_variable worker_wake_;  // the parked worker waits here
  std::condition_variable guest_left_;   // a thread that takes or reclaims ownership waits here
  std::condition_variable left_;         // Stop() waits here
  bool owned_ = false;                   // there is an owner
  bool worker_owns_ = false;
  bool worker_rests_ = false;  // parked until the owner leaves
  bool open_ = true;           // no owner, or the owner sleeps
  bool guest_ = false;  // written under the mutex; the guest and the owner may read it without
  OwnerList<Waiter> waiters_;
  std::shared_ptr<std::atomic<int>> passive_waits_ =
      std::make_shared<std::atomic<int>>(0);  // with
                                              // PassiveWait
  std::atomic<bool> worker_kicked_{false};    // somebody wants the worker to stop driving
  std::atomic<std::uint64_t> turns_{0};
  std::atomic<int> callers_{0};  // application threads inside DriveUntil or DriveOnce
  std::atomic<std::thread::id> owner_{};
  std::atomic<bool> stopping_{false};
  std::thread worker_;

  // The queue.
  std::mutex queue_mutex_;
  std::vector<Task> queue_;
  bool stopped_ = false;  // under queue_mutex_
  std::atomic<bool> queued_{false};
  std::atomic<bool> sleeping_{false};

  // Used by the owner and by a thread that runs a task for it.
  std::vector<Task> running_;  // taken from the queue; the first next_task_ have run
  std::size_t next_task_ = 0;
  bool notify_due_ = false;     // conditions of waiting threads may have become true
  Deferred::List deferred_[3];  // by Defer
  Deferred::List due_[3];       // taken from deferred_ and now running
  int busy_turns_ = 0;          // since idle work last ran, or since there was none
  std::map<std::pair<Clock::time_point, TimerId>, Task> timers_;
  std::map<TimerId, Clock::time_point> timer_times_;
  TimerId next_timer_ = 1;
  // While timers run: the time up to which they are due.
  Clock::time_point timers_run_to_ = Clock::time_point::min();
  std::unordered_map<int, Watch> watches_;  // by descriptor
  std::uint32_t next_generation_ = 1;
  std::vector<epoll_event> events_;
};

}  // namespace ferry
