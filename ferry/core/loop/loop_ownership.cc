// Taking, sharing and leaving the ownership of a loop.
#include "ferry/core/loop/loop_ownership.h"

#include <utility>

#include "ferry/core/check.h"

namespace ferry {

// No task of another thread starts from here on, so such tasks cannot keep an owner out.
void LoopOwnership::Take(std::unique_lock<std::mutex>& lock) {
  FERRY_CHECK(!owned_);
  owned_ = true;
  open_ = false;
  guest_left_.wait(lock, [this] { return !guest_; });
  owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
}

void LoopOwnership::Release(std::unique_lock<std::mutex>& lock) {
  FERRY_CHECK(lock.owns_lock());
  owned_ = false;
  open_ = true;
  owner_.store({}, std::memory_order_relaxed);
  WakeSuccessorLocked();
  if (std::exchange(worker_rests_, false) || passive_waits_->load() > 0) worker_wake_.notify_one();
  if (stopping_.load()) left_.notify_all();
}

void LoopOwnership::Share() {
  const std::lock_guard lock(mutex_);
  owner_.store({}, std::memory_order_relaxed);
  open_ = true;
}

void LoopOwnership::Reclaim() {
  std::unique_lock lock(mutex_);
  open_ = false;
  guest_left_.wait(lock, [this] { return !guest_; });
  owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
}

// ---- the guest ----------------------------------------------------------------------------------

bool LoopOwnership::EnterAsGuest(FunctionRef<bool()> idle) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || !open_ || guest_ || stopping_.load() || !idle()) return false;
  guest_ = true;
  owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  return true;
}

// Holds the lock to the end: once the guest has left, the loop may be destroyed.
void LoopOwnership::LeaveAsGuest(bool wakes) {
  const std::lock_guard lock(mutex_);
  const bool notifies = std::exchange(notify_due_, false);
  if (notifies) WakeReadyLocked();
  if (wakes || notifies) epoll_->Wake();
  owner_.store({}, std::memory_order_relaxed);
  guest_ = false;
  guest_left_.notify_one();
  if (stopping_.load()) left_.notify_all();
}

// ---- application threads ------------------------------------------------------------------------

// Not if the worker would have to return at once: that costs the caller more than being notified by
// it.
void LoopOwnership::KickLocked() {
  if (!worker_owns_ || passive_waits_->load() > 0) return;
  if (!worker_kicked_.exchange(true)) epoll_->Interrupt();
}

void LoopOwnership::Await(std::unique_lock<std::mutex>& lock, Waiter* waiter, Deadline deadline) {
  KickLocked();
  waiter->woken = false;
  waiters_.PushBack(&waiter->node);
  const auto woken = [&] { return waiter->woken; };
  if (deadline.never()) {
    waiter->wake.wait(lock, woken);
  } else {
    waiter->wake.wait_until(lock, deadline.when(), woken);
  }
  waiter->node.Unlink();
}

void LoopOwnership::WakeLocked(Waiter* waiter) {
  if (std::exchange(waiter->woken, true)) return;
  waiter->wake.notify_one();
}

void LoopOwnership::WakeReadyLocked() {
  waiters_.ForEach([](Waiter* waiter) {
    if (!waiter->woken && waiter->done()) WakeLocked(waiter);
  });
}

// Wakes one waiting thread. If it leaves instead of driving, EndCall() wakes the next one.
void LoopOwnership::WakeSuccessorLocked() {
  if (Waiter* const next = waiters_.front()) WakeLocked(next);
}

void LoopOwnership::OwnUntil(FunctionRef<bool()> done, Deadline deadline,
                             FunctionRef<void()> drive) {
  callers_.fetch_add(1);
  Waiter waiter(done);
  std::unique_lock lock(mutex_);
  while (!done() && !deadline.expired() && !stopping_.load()) {
    if (owned_) {
      Await(lock, &waiter, deadline);
      continue;
    }
    Take(lock);
    lock.unlock();
    drive();
    lock.lock();
    Release(lock);
  }
  EndCall(lock);
}

void LoopOwnership::OwnOnce(FunctionRef<void()> drive) {
  callers_.fetch_add(1);
  std::unique_lock lock(mutex_);
  if (worker_owns_) {
    // The worker leaves within a turn and stays parked as long as this thread returns within its
    // linger.
    KickLocked();
  } else if (!owned_ && !stopping_.load()) {
    Take(lock);
    lock.unlock();
    drive();
    lock.lock();
    Release(lock);
  }
  EndCall(lock);
}

// Holds the lock to the end: once AwaitStopped() has seen the last application thread leave, the
// loop may be destroyed.
void LoopOwnership::EndCall(std::unique_lock<std::mutex>& lock) {
  callers_.fetch_sub(1);
  if (!owned_) WakeSuccessorLocked();
  if (stopping_.load()) left_.notify_all();
  lock.unlock();
}

void LoopOwnership::WakeReady() {
  const std::lock_guard lock(mutex_);
  WakeReadyLocked();
}

void LoopOwnership::WakeReadyIfDue() {
  if (std::exchange(notify_due_, false)) WakeReady();
}

EventLoop::PassiveWait LoopOwnership::BeginPassiveWait() {
  passive_waits_->fetch_add(1);
  EventLoop::PassiveWait wait(passive_waits_);
  const std::lock_guard lock(mutex_);
  if (!owned_) worker_wake_.notify_one();
  return wait;
}

// ---- the worker ---------------------------------------------------------------------------------

void LoopOwnership::RunWorker(microseconds linger, FunctionRef<void()> drive) {
  std::unique_lock lock(mutex_);
  // Counts turns only: a thread that ran a task and left has not looked at timers and descriptors.
  std::uint64_t seen = turns_.load();
  while (!stopping_.load()) {
    const bool used = std::exchange(seen, turns_.load()) != turns_.load();
    if (owned_ && !used) {
      // An application thread without a turn since the last check may stay long; its departure
      // wakes the worker. Checking once per linger would cost two cores where 400 threads wait for
      // their endpoints.
      worker_rests_ = true;
      worker_wake_.wait(lock, [this] { return !worker_rests_ || stopping_.load(); });
      continue;
    }
    if (owned_ || (used && passive_waits_->load() == 0)) {
      worker_wake_.wait_for(lock, linger);
      continue;
    }
    worker_kicked_.store(false);
    worker_owns_ = true;
    Take(lock);
    lock.unlock();
    drive();
    lock.lock();
    worker_owns_ = false;
    Release(lock);
    if (stopping_.load()) break;
    // A thread asked for ownership and has this long to take it, unless a passive wait has begun
    // since, whose notice came while the worker could not hear it.
    seen = turns_.load();
    if (passive_waits_->load() == 0) worker_wake_.wait_for(lock, linger);
  }
}

// ---- stop ---------------------------------------------------------------------------------------

void LoopOwnership::BeginStop() {
  const std::lock_guard lock(mutex_);
  stopping_.store(true);
  worker_wake_.notify_all();
  waiters_.ForEach(WakeLocked);
  epoll_->Interrupt();
}

void LoopOwnership::AwaitStopped() {
  std::unique_lock lock(mutex_);
  left_.wait(lock, [this] { return !owned_ && !guest_ && callers_.load() == 0; });
}

}  // namespace ferry
