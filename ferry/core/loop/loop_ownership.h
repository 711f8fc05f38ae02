// Which thread drives an event loop: its worker, an application thread, or neither.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "ferry/core/deadline.h"
#include "ferry/core/function_ref.h"
#include "ferry/core/loop/epoll_set.h"
#include "ferry/core/loop/event_loop.h"
#include "ferry/core/loop/owner_list.h"

namespace ferry {

// Loop ownership (docs/threading.md). An owner that sleeps in epoll_wait shares it: another thread,
// the guest, may run one task meanwhile. The functions that are passed in run without the mutex,
// unless their parameter says otherwise.
class LoopOwnership {
 public:
  // `epoll` must outlive this. The owner sleeps in it.
  explicit LoopOwnership(EpollSet* epoll) : epoll_(epoll) {}

  // Any thread.
  bool Owns() const noexcept {
    return owner_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }
  bool stopping() const noexcept { return stopping_.load(); }

  // --- Application threads: any but the owner.

  // Calls `drive` as owner, or waits for the owner, until `done()` or the deadline. `drive` returns
  // soon after `done()`, the deadline, or stopping(). `done` also runs under the mutex.
  void OwnUntil(FunctionRef<bool()> done, Deadline deadline, FunctionRef<void()> drive);
  // Calls `drive` as owner if there is none. Asks an owning worker to leave.
  void OwnOnce(FunctionRef<void()> drive);
  // Whether a thread is in OwnUntil() or OwnOnce(). A read-modify-write, like the one of the
  // waiting thread: either this thread sees the waiter, or the waiter sees everything done before
  // this call, however weakly that was ordered.
  bool has_callers() noexcept { return callers_.fetch_add(0) != 0; }
  // Wakes the threads in OwnUntil() whose condition has become true.
  void WakeReady();
  EventLoop::PassiveWait BeginPassiveWait();
  // Makes this thread the guest and returns true, if no thread is in a callback and `idle()`, which
  // runs under the mutex. LeaveAsGuest() ends that; `wakes`: the owner has to look at the loop.
  bool EnterAsGuest(FunctionRef<bool()> idle);
  void LeaveAsGuest(bool wakes);

  // --- The worker's thread.

  // Calls `drive` whenever the worker should own the loop, and parks it otherwise, until
  // stopping(). `drive` returns soon after worker_must_leave().
  void RunWorker(microseconds linger, FunctionRef<void()> drive);
  bool worker_must_leave() const noexcept { return worker_kicked_.load() || stopping_.load(); }

  // --- The owner; WakeReadyLater() also the guest.

  // Wakes what WakeReady() would, but by WakeReadyIfDue(), after the callback has returned: it may
  // hold a lock that the conditions need, and often several notifications are due.
  void WakeReadyLater() noexcept { notify_due_ = true; }
  // Between callbacks.
  void WakeReadyIfDue();
  // Around a sleep in epoll_wait.
  void Share();
  void Reclaim();
  // A whole turn, which has looked at timers and descriptors, has ended.
  void CountTurn() noexcept { turns_.fetch_add(1, std::memory_order_relaxed); }

  // --- Stop: any thread but the owner.

  // Makes all threads leave; then waits for the application threads to be gone. The worker has to
  // be joined between the two.
  void BeginStop();
  void AwaitStopped();

 private:
  // A thread in OwnUntil() that waits while another thread drives.
  struct Waiter {
    explicit Waiter(FunctionRef<bool()> until) : done(until) {}
    const FunctionRef<bool()> done;
    std::condition_variable wake;
    bool woken = false;
    OwnerList<Waiter>::Node node{this};
  };

  void Take(std::unique_lock<std::mutex>& lock);
  void Release(std::unique_lock<std::mutex>& lock);
  void Await(std::unique_lock<std::mutex>& lock, Waiter* waiter, Deadline deadline);
  void EndCall(std::unique_lock<std::mutex>& lock);
  void KickLocked();
  static void WakeLocked(Waiter* waiter);
  void WakeReadyLocked();
  void WakeSuccessorLocked();

  EpollSet* const epoll_;
  std::mutex mutex_;
  std::condition_variable worker_wake_;  // the parked worker waits here
  std::condition_variable guest_left_;   // a thread that takes or reclaims ownership waits here
  std::condition_variable left_;         // AwaitStopped() waits here
  bool owned_ = false;                   // there is an owner
  bool worker_owns_ = false;
  bool worker_rests_ = false;  // parked until the owner leaves
  bool open_ = true;           // no owner, or the owner sleeps
  bool guest_ = false;         // a thread runs a task for the owner, or for nobody
  OwnerList<Waiter> waiters_;
  // Shared with PassiveWait, which may outlive the loop.
  std::shared_ptr<std::atomic<int>> passive_waits_ = std::make_shared<std::atomic<int>>(0);
  std::atomic<bool> worker_kicked_{false};  // somebody wants the worker to stop driving
  std::atomic<std::uint64_t> turns_{0};
  std::atomic<int> callers_{0};  // application threads inside OwnUntil() or OwnOnce()
  std::atomic<std::thread::id> owner_{};
  std::atomic<bool> stopping_{false};
  bool notify_due_ = false;  // of the owner and the guest: conditions may have become true
};

}  // namespace ferry
