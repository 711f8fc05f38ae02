// The epoll loop: what one turn does, posting, and the worker.
#include "ferry/core/loop/event_loop.h"

#include <fmt/core.h>
#include <pthread.h>

#include <thread>
#include <utility>

#include "ferry/core/check.h"
#include "ferry/core/loop/deferred_lists.h"
#include "ferry/core/loop/epoll_set.h"
#include "ferry/core/loop/loop_ownership.h"
#include "ferry/core/loop/task_queue.h"
#include "ferry/core/loop/thread.h"
#include "ferry/core/loop/timer_queue.h"

namespace ferry {
namespace {
constexpr std::size_t kMaxTasks = 256;
// Turns after which idle work runs on a loop that is never idle.
constexpr int kBusyTurns = 64;
const Deadline kNow = Deadline::At(Clock::time_point{});
}  // namespace

// The parts of a loop, and what needs several of them. All but `tasks` and `ownership` are used by
// the owner, and by a thread that runs a task for it.
class EventLoop::Impl {
 public:
  explicit Impl(microseconds the_linger) : linger(the_linger) {}

  Status StartWorker(const char* thread_name, microseconds spin, SpinPermits* permits);
  void Stop();
  void Post(Task task);
  bool RunAsGuest(Task* task);
  bool DriveUntil(FunctionRef<bool()> done, Deadline deadline, microseconds spin);
  void DriveOnce();

  const microseconds linger;
  EpollSet epoll;
  LoopOwnership ownership{&epoll};
  TaskQueue tasks;
  TimerQueue timers;
  DeferredLists deferred;

 private:
  void DriveAsWorker();
  // One turn: queue, timers, epoll (sleeping until `wake` at most, and only if nothing was done and
  // nothing is deferred), handlers. Returns false where there was nothing to do.
  bool RunTurn(Deadline wake);
  bool RunQueue();
  bool RunTimers();
  bool RunDeferred(Defer when);
  bool PollEvents(Deadline wake);

  int busy_turns_ = 0;    // since idle work last ran, or since there was none
  microseconds spin_{0};  // of the worker
  SpinPermits* spin_permits_ = nullptr;
  std::thread worker_;
};

Status EventLoop::Impl::StartWorker(const char* thread_name, microseconds spin,
                                    SpinPermits* permits) {
  FERRY_CHECK(!worker_.joinable());
  spin_ = spin;
  spin_permits_ = permits;
  FERRY_TRY_ASSIGN(worker_, StartThread(fmt::format("the worker {}", thread_name), [this] {
                     ownership.RunWorker(linger, [this] { DriveAsWorker(); });
                   }));
  (void)::pthread_setname_np(worker_.native_handle(), thread_name);
  return Ok();
}

void EventLoop::Impl::Stop() {
  FERRY_CHECK(!ownership.Owns());
  ownership.BeginStop();
  if (worker_.joinable()) worker_.join();
  ownership.AwaitStopped();
  deferred.Clear();
  // Destroyed after the queue is closed: destroying the tasks may post again.
  const auto dropped_timers = timers.TakeAll();
  tasks.Close();
}

// ---- posting ------------------------------------------------------------------------------------

void EventLoop::Impl::Post(Task task) {
  tasks.Push(std::move(task));
  epoll.Wake();
}

// Runs only this task and none posted earlier: those rely on turns between them, which look at
// timers and descriptors.
bool EventLoop::Impl::RunAsGuest(Task* task) {
  if (!ownership.EnterAsGuest([this] { return tasks.empty(); })) return false;
  const Clock::time_point next_timer = timers.next();
  {
    Task mine = std::move(*task);
    mine();
  }
  deferred.Run(Defer::kTurnEnd);
  // A sleeping owner does not know what was deferred or scheduled since.
  ownership.LeaveAsGuest(timers.next() < next_timer || deferred.has_soon() ||
                         !deferred.empty(Defer::kIdle));
  return true;
}

// ---- driving ------------------------------------------------------------------------------------

bool EventLoop::Impl::DriveUntil(FunctionRef<bool()> done, Deadline deadline, microseconds spin) {
  FERRY_CHECK(!ownership.Owns());
  if (done()) return true;
  if (deadline.expired()) {
    // A caller that only polls must not prevent others from driving.
    DriveOnce();
    return done();
  }
  ownership.OwnUntil(done, deadline, [&] {
    const Deadline spin_until = Deadline::After(spin).Sooner(deadline);
    bool spinning = spin.count() > 0;
    while (!done() && !deadline.expired() && !ownership.stopping()) {
      if (spinning) spinning = !spin_until.expired();
      RunTurn(spinning ? kNow : deadline);
    }
  });
  return done();
}

void EventLoop::Impl::DriveOnce() {
  if (ownership.Owns()) return;
  ownership.OwnOnce([this] { RunTurn(kNow); });
}

void EventLoop::Impl::DriveAsWorker() {
  Deadline spin_until = kNow;
  bool spins = false;
  while (!ownership.worker_must_leave()) {
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
}

// ---- one turn -----------------------------------------------------------------------------------

bool EventLoop::Impl::RunTurn(Deadline wake) {
  // Requested by work that ran at the end of the last turn.
  bool worked = RunDeferred(Defer::kTurnEnd);
  worked |= RunDeferred(Defer::kNextTurn);
  worked |= RunQueue();
  worked |= RunTimers();
  const bool pending = deferred.has_soon();
  const bool may_sleep = !worked && !pending && deferred.empty(Defer::kIdle);
  worked |= PollEvents(may_sleep ? wake : kNow);
  const bool idle = !worked && !pending;
  busy_turns_ = idle || deferred.empty(Defer::kIdle) ? 0 : busy_turns_ + 1;
  if (idle || busy_turns_ >= kBusyTurns) RunDeferred(Defer::kIdle);
  ownership.CountTurn();
  return !idle;
}

// Remaining tasks wait until the turn has looked at timers and descriptors, however fast tasks
// come.
bool EventLoop::Impl::RunQueue() {
  if (!tasks.RunSome(kMaxTasks)) return false;
  RunDeferred(Defer::kTurnEnd);
  ownership.WakeReadyIfDue();
  return true;
}

bool EventLoop::Impl::RunTimers() {
  if (timers.empty()) return false;
  const bool worked = timers.RunDue(Clock::now());
  if (worked) RunDeferred(Defer::kTurnEnd);
  ownership.WakeReadyIfDue();
  return worked;
}

bool EventLoop::Impl::RunDeferred(Defer when) {
  const bool any = deferred.Run(when);
  if (any) ownership.WakeReadyIfDue();
  return any;
}

bool EventLoop::Impl::PollEvents(Deadline wake) {
  wake = wake.Sooner(Deadline::At(timers.next()));
  bool sleeps = !wake.expired();
  if (sleeps) {
    epoll.AnnounceSleep();
    sleeps = !tasks.has_new();
  }
  if (sleeps) ownership.Share();
  const int count = sleeps ? epoll.Wait(wake) : epoll.Look();
  if (sleeps) ownership.Reclaim();
  const bool worked = epoll.Handle(count, [this] { ownership.WakeReadyIfDue(); });
  if (worked) RunDeferred(Defer::kTurnEnd);
  return worked;
}

// ---- the public class ---------------------------------------------------------------------------

EventLoop::EventLoop(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
EventLoop::~EventLoop() { Stop(); }

Result<std::unique_ptr<EventLoop>> EventLoop::Create(microseconds linger) {
  auto impl = std::make_unique<Impl>(linger);
  FERRY_TRY(impl->epoll.Open());
  return std::unique_ptr<EventLoop>(new EventLoop(std::move(impl)));
}

Status EventLoop::StartWorker(const char* thread_name, microseconds spin, SpinPermits* permits) {
  return impl_->StartWorker(thread_name, spin, permits);
}

void EventLoop::Stop() { impl_->Stop(); }

void EventLoop::Post(Task task) { impl_->Post(std::move(task)); }

void EventLoop::PostOrRun(Task task) {
  if (InLoop() || !impl_->RunAsGuest(&task)) Post(std::move(task));
}

bool EventLoop::DriveUntil(FunctionRef<bool()> done, Deadline deadline, microseconds spin) {
  return impl_->DriveUntil(done, deadline, spin);
}

void EventLoop::DriveOnce() { impl_->DriveOnce(); }

void EventLoop::NotifyWaiters() {
  if (!impl_->ownership.has_callers()) return;
  if (InLoop()) return impl_->ownership.WakeReadyLater();
  // The owner may be an application thread asleep in epoll_wait.
  Post([] {});
  impl_->ownership.WakeReady();
}

EventLoop::PassiveWait EventLoop::BeginPassiveWait() { return impl_->ownership.BeginPassiveWait(); }

bool EventLoop::InLoop() const noexcept { return impl_->ownership.Owns(); }

Status EventLoop::WatchOnLoop(int fd, std::uint32_t events, Handler* handler) {
  return impl_->epoll.Watch(fd, events, handler);
}

void EventLoop::UnwatchOnLoop(int fd, Handler* handler) { impl_->epoll.Unwatch(fd, handler); }

EventLoop::TimerId EventLoop::AddTimerOnLoop(Clock::time_point when, Task task) {
  return impl_->timers.Add(when, std::move(task));
}

void EventLoop::CancelTimerOnLoop(TimerId id) { impl_->timers.Cancel(id); }

void EventLoop::DeferOnLoop(Defer when, Deferred* deferred) {
  impl_->deferred.Request(when, deferred);
}

void EventLoop::CancelDeferredOnLoop(Deferred* deferred) { DeferredLists::Cancel(deferred); }

}  // namespace ferry
