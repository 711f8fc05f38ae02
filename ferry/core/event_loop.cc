#include "ferry/core/event_loop.h"

#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "ferry/core/check.h"

namespace ferry {
namespace {
constexpr int kMaxEvents = 64;
// How long work for an idle moment is put off on a loop that has none.
constexpr int kBusyTurns = 64;
const Deadline kNow = Deadline::At(Clock::time_point{});
}  // namespace

Result<std::unique_ptr<EventLoop>> EventLoop::Create(microseconds linger) {
  std::unique_ptr<EventLoop> loop(new EventLoop(linger));
  loop->epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  if (!loop->epoll_) return ErrnoError("epoll_create1", errno);
  FERRY_TRY_ASSIGN(loop->wake_, MakeEventFd());
  epoll_event event{};
  // Edge-triggered: each write wakes, and nobody ever has to read the count back.
  event.events = EPOLLIN | EPOLLET;
  event.data.ptr = nullptr;
  if (::epoll_ctl(loop->epoll_.get(), EPOLL_CTL_ADD, loop->wake_.get(), &event) != 0) {
    return ErrnoError("epoll_ctl for the wake-up descriptor", errno);
  }
  loop->events_.resize(kMaxEvents);
  return loop;
}

EventLoop::~EventLoop() { Stop(); }

void EventLoop::StartWorker(const char* thread_name, microseconds spin, SpinPermits* permits) {
  FERRY_CHECK(!worker_.joinable());
  spin_ = spin;
  spin_permits_ = permits;
  worker_ = std::thread([this] { WorkerMain(); });
  (void)::pthread_setname_np(worker_.native_handle(), thread_name);
}

void EventLoop::Stop() {
  FERRY_CHECK(!InLoop());
  {
    const std::lock_guard lock(seat_mutex_);
    stopping_.store(true);
    worker_wake_.notify_all();
    seat_free_.notify_all();
    SignalEventFd(wake_.get());
  }
  if (worker_.joinable()) worker_.join();
  std::unique_lock seat(seat_mutex_);
  seat_free_.wait(seat, [this] { return !seated_ && visitors_.load() == 0; });
  seat.unlock();
  // Swapped out first: what they own may post again when it goes.
  const auto dropped_timers = std::exchange(timers_, {});
  timer_times_.clear();
  std::vector<Task> dropped;
  const std::lock_guard lock(queue_mutex_);
  stopped_ = true;
  dropped.swap(queue_);
}

// ---- posting ------------------------------------------------------------------------------------

void EventLoop::Push(Task task) {
  const std::lock_guard lock(queue_mutex_);
  if (stopped_) return;  // and the task goes, after the lock
  queue_.push_back(std::move(task));
  queued_.store(true);
}

void EventLoop::Post(Task task) {
  Push(std::move(task));
  // The driver sets sleeping_ and then looks at queued_; we set queued_ and then look at sleeping_:
  // with sequentially consistent accesses one of the two sees the other.
  if (sleeping_.exchange(false)) SignalEventFd(wake_.get());
}

void EventLoop::PostOrRun(Task task) {
  if (!InLoop() && visitors_.load(std::memory_order_relaxed) == 0) {
    std::unique_lock lock(seat_mutex_, std::try_to_lock);
    if (lock.owns_lock() && !seated_ && !stopping_.load()) {
      TakeSeat();
      lock.unlock();
      Push(std::move(task));
      RunQueue();
      lock.lock();
      LeaveSeat(lock);
      return;
    }
  }
  Post(std::move(task));
}

// ---- the seat -----------------------------------------------------------------------------------

void EventLoop::TakeSeat() noexcept {
  seated_ = true;
  driver_.store(std::this_thread::get_id(), std::memory_order_relaxed);
}

void EventLoop::LeaveSeat(std::unique_lock<std::mutex>& lock) {
  FERRY_CHECK(lock.owns_lock());
  seated_ = false;
  ++seat_uses_;
  driver_.store({}, std::memory_order_relaxed);
  seat_free_.notify_all();
  // The worker sleeps until it is kicked (WorkerMain).
  if (!worker_seated_ && !worker_kicked_.exchange(true)) worker_wake_.notify_one();
}

void EventLoop::KickLocked() {
  if (!worker_seated_) return;
  worker_kicked_.store(true);
  SignalEventFd(wake_.get());
}

void EventLoop::AwaitSeat(std::unique_lock<std::mutex>& lock, Deadline deadline) {
  KickLocked();
  if (deadline.never()) {
    seat_free_.wait(lock);
  } else {
    seat_free_.wait_until(lock, deadline.when());
  }
}

bool EventLoop::DriveUntil(FunctionRef<bool()> done, Deadline deadline, microseconds spin) {
  FERRY_CHECK(!InLoop());
  if (done()) return true;
  if (deadline.expired()) {
    // A caller that only polls must not keep everybody from driving.
    DriveOnce();
    return done();
  }
  visitors_.fetch_add(1);
  std::unique_lock lock(seat_mutex_);
  while (!done() && !deadline.expired() && !stopping_.load()) {
    if (seated_) {
      AwaitSeat(lock, deadline);
      continue;
    }
    TakeSeat();
    lock.unlock();
    const Deadline spin_until = Deadline::After(spin).Sooner(deadline);
    bool spinning = spin.count() > 0;
    while (!done() && !deadline.expired() && !stopping_.load(std::memory_order_relaxed)) {
      if (spinning) spinning = !spin_until.expired();
      RunTurn(spinning ? kNow : deadline);
    }
    lock.lock();
    LeaveSeat(lock);
  }
  EndVisit(lock);
  return done();
}

void EventLoop::DriveOnce() {
  if (InLoop()) return;
  visitors_.fetch_add(1);
  std::unique_lock lock(seat_mutex_);
  if (worker_seated_) {
    // The worker leaves within a turn and stays parked as long as we come back within linger_.
    KickLocked();
  } else if (!seated_ && !stopping_.load()) {
    TakeSeat();
    lock.unlock();
    RunTurn(kNow);
    lock.lock();
    LeaveSeat(lock);
  }
  ++seat_uses_;
  EndVisit(lock);
}

// Under the lock to its end: once Stop() has seen the last visitor go, the loop may be destroyed.
void EventLoop::EndVisit(std::unique_lock<std::mutex>& lock) {
  visitors_.fetch_sub(1);
  if (stopping_.load()) seat_free_.notify_all();
  lock.unlock();
}

void EventLoop::NotifyWaiters() {
  // A read-modify-write, as the visitor's own: either we see the visitor here, or the visitor sees
  // what was done before this call, however weakly that was ordered.
  if (visitors_.fetch_add(0) == 0) return;
  // The driver may be a visitor that is asleep in epoll_wait.
  if (!InLoop()) Post([] {});
  const std::lock_guard lock(seat_mutex_);
  seat_free_.notify_all();
}

void EventLoop::WorkerMain() {
  std::unique_lock lock(seat_mutex_);
  std::uint64_t last_uses = seat_uses_;
  while (!stopping_.load()) {
    const bool in_use = seated_ || visitors_.load() > 0 || seat_uses_ != last_uses;
    if (in_use) {
      // A visit that has lasted since the last look may last long: its end kicks the worker. To
      // look on once per linger would cost two cores where 400 threads wait for their endpoints.
      const bool lasts = seated_ && seat_uses_ == last_uses;
      last_uses = seat_uses_;
      if (lasts) {
        worker_kicked_.store(false);
        worker_wake_.wait(lock, [this] { return worker_kicked_.load() || stopping_.load(); });
      } else {
        worker_kicked_.store(true);  // not waited for
        worker_wake_.wait_for(lock, linger_);
      }
      continue;
    }
    // Its end is a use of the seat, so the worker is parked at least once before the next.
    WorkerSession(lock);
  }
}

void EventLoop::WorkerSession(std::unique_lock<std::mutex>& lock) {
  TakeSeat();
  worker_seated_ = true;
  worker_kicked_.store(false);
  lock.unlock();
  Deadline spin_until = kNow;
  bool spins = false;
  while (visitors_.load() == 0 && !worker_kicked_.load() && !stopping_.load()) {
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
      // To a worker that was woken for this core, which may wait for milliseconds. All-reduce of 4
      // to 64 MiB between two H200 took 2 to 7 % less (one start each, docs/results.md).
      std::this_thread::yield();
    }
  }
  if (spins && spin_permits_ != nullptr) spin_permits_->Give();
  lock.lock();
  worker_seated_ = false;
  LeaveSeat(lock);
}

// ---- one turn -----------------------------------------------------------------------------------

bool EventLoop::RunTurn(Deadline wake) {
  bool worked = RunDeferred(Defer::kTurnEnd);  // asked for by what ran at the last turn's end
  worked |= RunDeferred(Defer::kNextTurn);
  worked |= RunQueue();
  worked |= RunTimers();
  const bool pending = !turn_end_.empty() || !next_turn_.empty();
  const bool may_sleep = !worked && !pending && idle_.empty();
  worked |= PollEvents(may_sleep ? wake : kNow);
  const bool idle = !worked && !pending;
  busy_turns_ = idle || idle_.empty() ? 0 : busy_turns_ + 1;
  if (idle || busy_turns_ >= kBusyTurns) RunDeferred(Defer::kIdle);
  return !idle;
}

bool EventLoop::RunQueue() {
  if (queued_.load()) {
    const std::lock_guard lock(queue_mutex_);
    running_.swap(queue_);
    queued_.store(false);
  }
  if (running_.empty()) return false;
  for (Task& task : running_) task();
  running_.clear();
  RunDeferred(Defer::kTurnEnd);
  return true;
}

bool EventLoop::RunTimers() {
  if (timers_.empty()) return false;
  const auto now = Clock::now();
  bool worked = false;
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    auto node = timers_.extract(timers_.begin());
    timer_times_.erase(node.key().second);
    node.mapped()();
    worked = true;
  }
  if (worked) RunDeferred(Defer::kTurnEnd);
  return worked;
}

std::vector<EventLoop::Deferred*>& EventLoop::ListOf(Defer when) {
  switch (when) {
    case Defer::kTurnEnd: return turn_end_;
    case Defer::kNextTurn: return next_turn_;
    case Defer::kIdle: break;
  }
  return idle_;
}

bool EventLoop::RunDeferred(Defer when) {
  auto& list = ListOf(when);
  const bool any = !list.empty();
  // Only those asked for before now: one that asks again waits for its next moment.
  for (std::size_t left = list.size(); left > 0 && !list.empty(); --left) {
    Deferred* deferred = list.front();
    list.erase(list.begin());
    deferred->RunDeferredOnLoop(when);
  }
  if (any && when != Defer::kTurnEnd) RunDeferred(Defer::kTurnEnd);
  return any;
}

int EventLoop::SleepMillis(Deadline wake) {
  if (!timers_.empty()) wake = wake.Sooner(Deadline::At(timers_.begin()->first.first));
  return wake.PollMillis();
}

bool EventLoop::PollEvents(Deadline wake) {
  int timeout = SleepMillis(wake);
  if (timeout != 0) {
    sleeping_.store(true);
    if (queued_.load()) timeout = 0;
  }
  const int n = ::epoll_wait(epoll_.get(), events_.data(), kMaxEvents, timeout);
  sleeping_.store(false, std::memory_order_relaxed);
  ready_ = std::max(n, 0);
  bool worked = false;
  for (std::size_t i = 0; i < static_cast<std::size_t>(ready_); ++i) {
    auto* handler = static_cast<Handler*>(events_[i].data.ptr);
    if (handler == nullptr) continue;  // the wake-up descriptor, or unwatched in this turn
    handler->OnEventsOnLoop(events_[i].events);
    worked = true;
  }
  ready_ = 0;
  if (worked) RunDeferred(Defer::kTurnEnd);
  return worked;
}

// ---- registration -------------------------------------------------------------------------------

Status EventLoop::WatchOnLoop(int fd, std::uint32_t events, Handler* handler) {
  epoll_event event{};
  event.events = events | EPOLLET;
  event.data.ptr = handler;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return ErrnoError("epoll_ctl add", errno);
  }
  return Ok();
}

void EventLoop::UnwatchOnLoop(int fd, Handler* handler) {
  epoll_event event{};
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, &event);
  for (int i = 0; i < ready_; ++i) {
    epoll_event& ready = events_[static_cast<std::size_t>(i)];
    if (ready.data.ptr == handler) ready.data.ptr = nullptr;
  }
}

EventLoop::TimerId EventLoop::AddTimerOnLoop(Clock::time_point when, Task task) {
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

void EventLoop::DeferOnLoop(Defer when, Deferred* deferred) { ListOf(when).push_back(deferred); }

void EventLoop::CancelDeferredOnLoop(Deferred* deferred) {
  for (auto* list : {&turn_end_, &next_turn_, &idle_}) {
    list->erase(std::remove(list->begin(), list->end(), deferred), list->end());
  }
}

}  // namespace ferry
