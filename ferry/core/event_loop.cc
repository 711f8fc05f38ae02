// The epoll loop: posting, loop ownership, turns and registration.
#include "ferry/core/event_loop.h"

#include <fmt/core.h>
#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/core/thread.h"

namespace ferry {
namespace {
constexpr int kMaxEvents = 64;
constexpr std::size_t kMaxTasks = 256;
// Turns after which idle work runs on a loop that is never idle.
constexpr int kBusyTurns = 64;
const Deadline kNow = Deadline::At(Clock::time_point{});

// The epoll data of a descriptor. The generation distinguishes events that were fetched before the
// handler was removed from those of the descriptor's next handler.
std::uint64_t EpollKey(int fd, std::uint32_t generation) {
  return std::uint64_t{generation} << 32 | static_cast<std::uint32_t>(fd);
}

}  // namespace

Result<std::unique_ptr<EventLoop>> EventLoop::Create(microseconds linger) {
  std::unique_ptr<EventLoop> loop(new EventLoop(linger));
  loop->epoll_ = ClosedInChildren(UniqueFd(::epoll_create1(EPOLL_CLOEXEC)));
  if (!loop->epoll_) return ErrnoError("epoll_create1", errno);
  FERRY_TRY_ASSIGN(loop->wake_, MakeEventFd());
  epoll_event event{};
  // Edge-triggered: each write wakes, and the count never has to be read.
  event.events = EPOLLIN | EPOLLET;
  event.data.u64 = EpollKey(loop->wake_.get(), 0);
  if (::epoll_ctl(loop->epoll_.get(), EPOLL_CTL_ADD, loop->wake_.get(), &event) != 0) {
    return ErrnoError("epoll_ctl for the wake-up descriptor", errno);
  }
  loop->events_.resize(kMaxEvents);
  return loop;
}

EventLoop::~EventLoop() { Stop(); }

Status EventLoop::StartWorker(const char* thread_name, microseconds spin, SpinPermits* permits) {
  FERRY_CHECK(!worker_.joinable());
  spin_ = spin;
  spin_permits_ = permits;
  FERRY_TRY_ASSIGN(
      worker_, StartThread(fmt::format("the worker {}", thread_name), [this] { WorkerMain(); }));
  (void)::pthread_setname_np(worker_.native_handle(), thread_name);
  return Ok();
}

void EventLoop::Stop() {
  FERRY_CHECK(!InLoop());
  {
    const std::lock_guard lock(ownership_mutex_);
    stopping_.store(true);
    worker_wake_.notify_all();
    waiters_.ForEach(WakeLocked);
    SignalEventFd(wake_.get());
  }
  if (worker_.joinable()) worker_.join();
  std::unique_lock owner(ownership_mutex_);
  left_.wait(owner, [this] { return !owned_ && !guest_ && callers_.load() == 0; });
  owner.unlock();
  for (auto& list : deferred_) list.Clear();
  // Swapped out first: destroying the tasks may post again.
  const auto dropped_timers = std::exchange(timers_, {});
  timer_times_.clear();
  const auto dropped_running = std::exchange(running_, {});
  std::vector<Task> dropped;
  const std::lock_guard lock(queue_mutex_);
  stopped_ = true;
  dropped.swap(queue_);
}

// ---- posting ------------------------------------------------------------------------------------

void EventLoop::Push(Task task) {
  const std::lock_guard lock(queue_mutex_);
  if (stopped_) return;  // the task is destroyed after the lock
  queue_.push_back(std::move(task));
  queued_.store(true);
}

void EventLoop::Post(Task task) {
  Push(std::move(task));
  WakeOwner();
}

// The owner sets sleeping_ and then reads queued_; a posting thread sets queued_ and then reads
// sleeping_. With sequentially consistent accesses at least one of them sees the other's store.
void EventLoop::WakeOwner() {
  if (sleeping_.exchange(false)) SignalEventFd(wake_.get());
}

void EventLoop::PostOrRun(Task task) {
  if (InLoop() || !RunAsGuest(&task)) Post(std::move(task));
}

// Runs only this task and none posted earlier: those rely on turns between them, which look at
// timers and descriptors.
bool EventLoop::RunAsGuest(Task* task) {
  std::unique_lock lock(ownership_mutex_, std::try_to_lock);
  if (!lock.owns_lock() || !open_ || guest_ || stopping_.load()) return false;
  if (queued_.load() || !running_.empty()) return false;
  guest_ = true;
  owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  lock.unlock();
  const Clock::time_point next_timer = NextTimer();
  {
    Task mine = std::move(*task);
    mine();
  }
  RunDeferred(Defer::kTurnEnd);
  // A sleeping owner does not know what was deferred or scheduled since.
  const bool wakes =
      notify_due_ || NextTimer() < next_timer || HasSoonDeferred() || !ListOf(Defer::kIdle).empty();
  lock.lock();
  if (std::exchange(notify_due_, false)) WakeReadyLocked();
  if (wakes) WakeOwner();
  owner_.store({}, std::memory_order_relaxed);
  guest_ = false;
  guest_left_.notify_one();
  if (stopping_.load()) left_.notify_all();
  return true;
}

// ---- loop ownership -----------------------------------------------------------------------------

// No task of another thread starts from here on, so such tasks cannot keep an owner out.
void EventLoop::TakeOwnership(std::unique_lock<std::mutex>& lock) {
  FERRY_CHECK(!owned_);
  owned_ = true;
  open_ = false;
  guest_left_.wait(lock, [this] { return !guest_; });
  owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
}

void EventLoop::ReleaseOwnership(std::unique_lock<std::mutex>& lock) {
  FERRY_CHECK(lock.owns_lock());
  owned_ = false;
  open_ = true;
  owner_.store({}, std::memory_order_relaxed);
  WakeSuccessorLocked();
  if (std::exchange(worker_rests_, false) || passive_waits_->load() > 0) worker_wake_.notify_one();
  if (stopping_.load()) left_.notify_all();
}

void EventLoop::ShareOwnership() {
  const std::lock_guard lock(ownership_mutex_);
  owner_.store({}, std::memory_order_relaxed);
  open_ = true;
}

void EventLoop::ReclaimOwnership() {
  std::unique_lock lock(ownership_mutex_);
  open_ = false;
  guest_left_.wait(lock, [this] { return !guest_; });
  owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
}

// Not if the worker would have to return at once: that costs the caller more than being notified by
// it.
void EventLoop::KickLocked() {
  if (!worker_owns_ || passive_waits_->load() > 0) return;
  if (!worker_kicked_.exchange(true)) SignalEventFd(wake_.get());
}

void EventLoop::AwaitOwnership(std::unique_lock<std::mutex>& lock, Waiter* waiter,
                               Deadline deadline) {
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

void EventLoop::WakeLocked(Waiter* waiter) {
  if (std::exchange(waiter->woken, true)) return;
  waiter->wake.notify_one();
}

void EventLoop::WakeReadyLocked() {
  waiters_.ForEach([](Waiter* waiter) {
    if (!waiter->woken && waiter->done()) WakeLocked(waiter);
  });
}

// Wakes one waiting thread. If it leaves instead of driving, EndCall() wakes the next one.
void EventLoop::WakeSuccessorLocked() {
  if (Waiter* const next = waiters_.front()) WakeLocked(next);
}

bool EventLoop::DriveUntil(FunctionRef<bool()> done, Deadline deadline, microseconds spin) {
  FERRY_CHECK(!InLoop());
  if (done()) return true;
  if (deadline.expired()) {
    // A caller that only polls must not prevent others from driving.
    DriveOnce();
    return done();
  }
  callers_.fetch_add(1);
  Waiter waiter(done);
  std::unique_lock lock(ownership_mutex_);
  while (!done() && !deadline.expired() && !stopping_.load()) {
    if (owned_) {
      AwaitOwnership(lock, &waiter, deadline);
      continue;
    }
    TakeOwnership(lock);
    lock.unlock();
    const Deadline spin_until = Deadline::After(spin).Sooner(deadline);
    bool spinning = spin.count() > 0;
    while (!done() && !deadline.expired() && !stopping_.load(std::memory_order_relaxed)) {
      if (spinning) spinning = !spin_until.expired();
      RunTurn(spinning ? kNow : deadline);
    }
    lock.lock();
    ReleaseOwnership(lock);
  }
  EndCall(lock);
  return done();
}

void EventLoop::DriveOnce() {
  if (InLoop()) return;
  callers_.fetch_add(1);
  std::unique_lock lock(ownership_mutex_);
  if (worker_owns_) {
    // The worker leaves within a turn and stays parked as long as this thread returns within
    // linger_.
    KickLocked();
  } else if (!owned_ && !stopping_.load()) {
    TakeOwnership(lock);
    lock.unlock();
    RunTurn(kNow);
    lock.lock();
    ReleaseOwnership(lock);
  }
  EndCall(lock);
}

// Holds the lock to the end: once Stop() has seen the last application thread leave, the loop may
// be destroyed.
void EventLoop::EndCall(std::unique_lock<std::mutex>& lock) {
  callers_.fetch_sub(1);
  if (!owned_) WakeSuccessorLocked();
  if (stopping_.load()) left_.notify_all();
  lock.unlock();
}

void EventLoop::NotifyWaiters() {
  // A read-modify-write, like the one of the waiting thread: either this thread sees the waiter, or
  // the waiter sees everything done before this call, however weakly that was ordered.
  if (callers_.fetch_add(0) == 0) return;
  if (InLoop()) {
    // Notify after the callback has returned: it may hold a lock that the conditions need, and
    // often several notifications are due.
    notify_due_ = true;
    return;
  }
  // The owner may be an application thread asleep in epoll_wait.
  Post([] {});
  const std::lock_guard lock(ownership_mutex_);
  WakeReadyLocked();
}

// Called by the owner between callbacks.
void EventLoop::WakeReady() {
  if (!std::exchange(notify_due_, false)) return;
  const std::lock_guard lock(ownership_mutex_);
  WakeReadyLocked();
}

EventLoop::PassiveWait EventLoop::BeginPassiveWait() {
  passive_waits_->fetch_add(1);
  PassiveWait wait(passive_waits_);
  const std::lock_guard lock(ownership_mutex_);
  if (!owned_) worker_wake_.notify_one();
  return wait;
}

void EventLoop::WorkerMain() {
  std::unique_lock lock(ownership_mutex_);
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
      worker_wake_.wait_for(lock, linger_);
      continue;
    }
    WorkerSession(lock);
    if (stopping_.load()) break;
    // A thread asked for ownership and has this long to take it.
    seen = turns_.load();
    worker_wake_.wait_for(lock, linger_);
  }
}

void EventLoop::WorkerSession(std::unique_lock<std::mutex>& lock) {
  worker_kicked_.store(false);
  worker_owns_ = true;
  TakeOwnership(lock);
  lock.unlock();
  Deadline spin_until = kNow;
  bool spins = false;
  while (!worker_kicked_.load() && !stopping_.load()) {
    const bool wants = spin_.count() > 0 && !spin_until.expired();
    if (wants && !spins) {
      spins = spin_permits_ == nullptr || spin_permits_->Take();
    } else if (!wants && spins) {
      spins = false;
      if (spin_permits_ != nullptr) spin_permits_->Give();
    }
    const bool worked = RunTurn(spins ? kNow : Deadline::Never());
    if (worked && spin_.count() > 0) {
      spin_until = Deadline::After(spin_);
    } else if (spins) {
      // Yield to a worker that was woken for this core and may otherwise wait for milliseconds.
      // All-reduce of 4 to 64 MiB between two H200 took 2 to 7 % less (one start each,
      // docs/results.md).
      std::this_thread::yield();
    }
  }
  if (spins && spin_permits_ != nullptr) spin_permits_->Give();
  lock.lock();
  worker_owns_ = false;
  ReleaseOwnership(lock);
}

// ---- one turn -----------------------------------------------------------------------------------

bool EventLoop::RunTurn(Deadline wake) {
  // Requested by work that ran at the end of the last turn.
  bool worked = RunDeferred(Defer::kTurnEnd);
  worked |= RunDeferred(Defer::kNextTurn);
  worked |= RunQueue();
  worked |= RunTimers();
  const bool pending = HasSoonDeferred();
  const bool may_sleep = !worked && !pending && ListOf(Defer::kIdle).empty();
  worked |= PollEvents(may_sleep ? wake : kNow);
  const bool idle = !worked && !pending;
  busy_turns_ = idle || ListOf(Defer::kIdle).empty() ? 0 : busy_turns_ + 1;
  if (idle || busy_turns_ >= kBusyTurns) RunDeferred(Defer::kIdle);
  turns_.fetch_add(1, std::memory_order_relaxed);
  return !idle;
}

bool EventLoop::RunQueue() {
  if (running_.empty() && queued_.load()) {
    const std::lock_guard lock(queue_mutex_);
    running_.swap(queue_);
    queued_.store(false);
  }
  if (running_.empty()) return false;
  // Remaining tasks wait until the turn has looked at timers and descriptors, however fast tasks
  // come.
  const std::size_t end = std::min(running_.size(), next_task_ + kMaxTasks);
  while (next_task_ < end) {
    Task task = std::move(running_[next_task_++]);
    task();
  }
  if (end == running_.size()) {
    running_.clear();
    next_task_ = 0;
  }
  RunDeferred(Defer::kTurnEnd);
  WakeReady();
  return true;
}

Clock::time_point EventLoop::NextTimer() const {
  return timers_.empty() ? Clock::time_point::max() : timers_.begin()->first.first;
}

bool EventLoop::RunTimers() {
  if (timers_.empty()) return false;
  timers_run_to_ = Clock::now();
  bool worked = false;
  while (NextTimer() <= timers_run_to_) {
    auto node = timers_.extract(timers_.begin());
    timer_times_.erase(node.key().second);
    node.mapped()();
    worked = true;
  }
  timers_run_to_ = Clock::time_point::min();
  if (worked) RunDeferred(Defer::kTurnEnd);
  WakeReady();
  return worked;
}

bool EventLoop::HasSoonDeferred() {
  return !ListOf(Defer::kTurnEnd).empty() || !ListOf(Defer::kNextTurn).empty();
}

bool EventLoop::RunDeferred(Defer when) {
  // Runs only work requested before now: work that requests itself again waits for its next moment.
  Deferred::List& due = due_[static_cast<std::size_t>(when)];
  due.TakeAll(&ListOf(when));
  const bool any = !due.empty();
  while (!due.empty()) due.PopFront()->RunDeferredOnLoop(when);
  if (any && when != Defer::kTurnEnd) RunDeferred(Defer::kTurnEnd);
  if (any) WakeReady();
  return any;
}

bool EventLoop::PollEvents(Deadline wake) {
  int timeout = wake.Sooner(Deadline::At(NextTimer())).PollMillis();
  if (timeout != 0) {
    sleeping_.store(true);
    if (queued_.load()) timeout = 0;
  }
  const bool sleeps = timeout != 0;
  if (sleeps) ShareOwnership();
  const int count = ::epoll_wait(epoll_.get(), events_.data(), kMaxEvents, timeout);
  sleeping_.store(false, std::memory_order_relaxed);
  if (sleeps) ReclaimOwnership();
  bool worked = false;
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events_[static_cast<std::size_t>(i)];
    const auto it = watches_.find(static_cast<int>(event.data.u64 & 0xffffffff));
    // No such watch: the wake-up descriptor, or a descriptor that was unwatched since.
    if (it == watches_.end() || it->second.generation != event.data.u64 >> 32) continue;
    it->second.handler->OnEvents(event.events);
    WakeReady();
    worked = true;
  }
  if (worked) RunDeferred(Defer::kTurnEnd);
  return worked;
}

// ---- registration -------------------------------------------------------------------------------

Status EventLoop::WatchOnLoop(int fd, std::uint32_t events, Handler* handler) {
  const std::uint32_t generation = next_generation_++;
  epoll_event event{};
  event.events = events | EPOLLET;
  event.data.u64 = EpollKey(fd, generation);
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return ErrnoError("epoll_ctl add", errno);
  }
  watches_[fd] = {handler, generation};
  return Ok();
}

void EventLoop::UnwatchOnLoop(int fd, Handler* handler) {
  const auto it = watches_.find(fd);
  if (it == watches_.end() || it->second.handler != handler) return;
  watches_.erase(it);
  epoll_event event{};
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, &event);
}

// A timer that a timer adds for now runs in the next turn: timers must not keep the loop from its
// other work.
EventLoop::TimerId EventLoop::AddTimerOnLoop(Clock::time_point when, Task task) {
  if (when <= timers_run_to_) when = timers_run_to_ + Clock::duration(1);
  const TimerId id = next_timer_++;
  timers_.emplace(std::make_pair(when, id), std::move(task));
  timer_times_.emplace(id, when);
  return id;
}

void EventLoop::CancelTimerOnLoop(TimerId id) {
  const auto it = timer_times_.find(id);
  if (it == timer_times_.end()) return;
  timers_.erase(std::make_pair(it->second, id));
  timer_times_.erase(it);
}

void EventLoop::DeferOnLoop(Defer when, Deferred* deferred) {
  auto& node = deferred->nodes_[static_cast<std::size_t>(when)];
  if (!node.linked()) ListOf(when).PushBack(&node);
}

void EventLoop::CancelDeferredOnLoop(Deferred* deferred) {
  for (auto& node : deferred->nodes_) node.Unlink();
}

}  // namespace ferry
