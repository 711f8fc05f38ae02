// Tests of loop ownership among a worker and application threads.
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ferry/core/fd.h"
#include "ferry/core/testing/event_loop_helpers.h"

// Loop ownership with all kinds of callers at once: the loop's timers and descriptors are always
// served.
namespace ferry {
namespace {

using std::chrono::seconds;

// Long enough for busy callers to return within it on a busy machine.
constexpr milliseconds kOwnershipLinger{20};
// How long the callers continue while the loop is served.
constexpr milliseconds kCallersGoOn{2500};
// A starved loop is starved for as long as its callers continue, so they continue for this long
// after it was last served. Machines that are busy delay a loop by seconds.
constexpr seconds kStarved{30};
// Tasks that a caller has posted and that have not run. Applications are limited, too, by
// max_operations; without a limit the queue grows to gigabytes, and the time that its memory takes
// is not the loop's.
constexpr int kMaxOutstanding = 4096;

UniqueFd OwnershipSignal() {
  auto fd = MakeEventFd();
  EXPECT_TRUE(fd);
  return *std::move(fd);
}

// ---- callers ------------------------------------------------------------------------------------

using Caller = void (*)(EventLoop& loop, const std::atomic<bool>& stop);

// Posts at most kMaxOutstanding tasks that have not run.
class BoundedPoster {
 public:
  explicit BoundedPoster(EventLoop* loop) : loop_(loop) {}

  void Post() {
    if (MayPost()) loop_->Post(Task());
  }
  void PostOrRun() {
    if (MayPost()) loop_->PostOrRun(Task());
  }

 private:
  bool MayPost() const { return outstanding_->load() < kMaxOutstanding; }
  EventLoop::Task Task() {
    outstanding_->fetch_add(1);
    return [outstanding = outstanding_] { outstanding->fetch_sub(1); };
  }

  EventLoop* const loop_;
  const std::shared_ptr<std::atomic<int>> outstanding_ =
      std::make_shared<std::atomic<int>>(0);  // with the tasks, which may outlive the caller
};

void PostsOnly(EventLoop& loop, const std::atomic<bool>& stop) {
  BoundedPoster poster(&loop);
  while (!stop.load()) {
    poster.Post();
    std::this_thread::yield();
  }
}

void PostsOrRuns(EventLoop& loop, const std::atomic<bool>& stop) {
  BoundedPoster poster(&loop);
  while (!stop.load()) poster.PostOrRun();
}

void PostsOrRunsEvery50us(EventLoop& loop, const std::atomic<bool>& stop) {
  BoundedPoster poster(&loop);
  while (!stop.load()) {
    poster.PostOrRun();
    std::this_thread::sleep_for(microseconds(50));
  }
}

void AddsAndCancelsTimers(EventLoop& loop, const std::atomic<bool>& stop) {
  while (!stop.load()) {
    EventLoop::TimerId id = 0;
    std::atomic<bool> added{false};
    loop.PostOrRun([&] {
      id = loop.AddTimerOnLoop(Clock::now() + seconds(1), [] {});
      added.store(true);
    });
    while (!added.load()) std::this_thread::yield();
    loop.PostOrRun([&loop, id] { loop.CancelTimerOnLoop(id); });
  }
}

void WaitsForItsTasks(EventLoop& loop, const std::atomic<bool>& stop) {
  while (!stop.load()) {
    std::atomic<bool> done{false};
    loop.PostOrRun([&] {
      done.store(true);
      loop.NotifyWaiters();
    });
    EXPECT_TRUE(Drive(loop, [&] { return done.load(); }));
  }
}

// This thread ends each wait itself; no turn does.
void WaitsForNothing(EventLoop& loop, const std::atomic<bool>& stop) {
  while (!stop.load()) {
    int looks = 0;
    (void)loop.DriveUntil([&] { return ++looks > 1; }, Deadline::After(milliseconds(1)), kNoSpin);
    std::this_thread::yield();
  }
}

void Polls(EventLoop& loop, const std::atomic<bool>& stop) {
  while (!stop.load()) {
    loop.DriveOnce();
    std::this_thread::yield();
  }
}

void PollsSeldom(EventLoop& loop, const std::atomic<bool>& stop) {
  while (!stop.load()) {
    loop.DriveOnce();
    std::this_thread::sleep_for(microseconds(700));
  }
}

void SleepsOnADescriptor(EventLoop& loop, const std::atomic<bool>& stop) {
  const UniqueFd fd = OwnershipSignal();
  while (!stop.load()) {
    loop.PostOrRun([&] { SignalEventFd(fd.get()); });
    const auto wait = loop.BeginPassiveWait();
    pollfd ready{.fd = fd.get(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&ready, 1, 30'000), 1);
    DrainEventFd(fd.get());
  }
}

struct Callers {
  const char* name;
  std::vector<Caller> threads;
};
void PrintTo(const Callers& callers, std::ostream* out) { *out << callers.name; }

// ---- what is served -----------------------------------------------------------------------------

class Served final : public EventLoop::Handler {
 public:
  explicit Served(EventLoop* loop) : loop_(loop) {
    loop_->Post([this] {
      EXPECT_TRUE(loop_->WatchOnLoop(fd_.get(), EPOLLIN, this));
      TickOnLoop();
    });
  }
  void OnEvents(std::uint32_t /*events*/) override { handled_.store(signalled_.load()); }

  // Signals the descriptor again and again. Returns the longest wait until the loop had handled it
  // and had run a timer that was not due before; kStarved if one of them did not come.
  Clock::duration LongestWait(Deadline until) {
    Clock::duration longest{};
    while (!until.expired() && longest < kStarved) {
      const auto start = Clock::now();
      const int mine = signalled_.fetch_add(1) + 1;
      const int ticks = ticks_.load();
      SignalEventFd(fd_.get());
      const auto is_served = [&] { return handled_.load() >= mine && ticks_.load() > ticks; };
      while (!is_served() && Clock::now() - start < kStarved) {
        std::this_thread::sleep_for(milliseconds(1));
      }
      longest = std::max(longest, Clock::now() - start);
    }
    return longest;
  }

 private:
  void TickOnLoop() {
    loop_->AddTimerOnLoop(Clock::now() + milliseconds(5), [this] {
      ticks_.fetch_add(1);
      TickOnLoop();
    });
  }

  EventLoop* loop_;
  const UniqueFd fd_ = OwnershipSignal();
  std::atomic<int> signalled_{0};
  std::atomic<int> handled_{0};
  std::atomic<int> ticks_{0};
};

class OwnedBy : public testing::TestWithParam<Callers> {};

TEST_P(OwnedBy, ServesTimersAndDescriptorsInTime) {
  auto loop = MakeLoop(kOwnershipLinger);
  ASSERT_TRUE(loop->StartWorker("test-loop"));
  Served served(loop.get());
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (const Caller caller : GetParam().threads) {
    threads.emplace_back([&, caller] { caller(*loop, stop); });
  }
  // The worker is parked at the start.
  (void)loop->DriveUntil([] { return false; }, Deadline::After(milliseconds(5)), kNoSpin);
  const Clock::duration longest = served.LongestWait(Deadline::After(kCallersGoOn));
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  loop->Stop();
  std::printf("  the longest wait was %.0f ms\n",
              std::chrono::duration<double, std::milli>(longest).count());
  EXPECT_LT(longest, kStarved);
}

INSTANTIATE_TEST_SUITE_P(
    Callers, OwnedBy,
    testing::Values(Callers{"Posters", {PostsOnly}}, Callers{"PostersThatRun", {PostsOrRuns}},
                    Callers{"PostersThatRunAndPause", {PostsOrRunsEvery50us}},
                    Callers{"Cancellers", {AddsAndCancelsTimers}},
                    Callers{"Waiters", {WaitsForItsTasks}},
                    Callers{"WaitersForNothing", {WaitsForNothing}}, Callers{"Pollers", {Polls}},
                    Callers{"PollersThatPause", {PollsSeldom}},
                    Callers{"SleepersOnADescriptor", {SleepsOnADescriptor}},
                    Callers{"PostersAndPollersThatPause", {PostsOrRuns, PollsSeldom}},
                    Callers{"All",
                            {PostsOnly, PostsOrRuns, PostsOrRunsEvery50us, AddsAndCancelsTimers,
                             WaitsForItsTasks, WaitsForNothing, Polls, PollsSeldom,
                             SleepsOnADescriptor}}),
    [](const auto& one) { return std::string(one.param.name); });

// ---- guests -------------------------------------------------------------------------------------

// Regression: the worker kept ownership while it slept, and each task waited for its wake-up.
TEST(OwnershipGuest, RunsItsTaskWhileTheWorkerSleeps) {
  auto loop = MakeLoop(seconds(60));
  ASSERT_TRUE(loop->StartWorker("test-loop"));
  std::atomic<bool> started{false};
  loop->Post([&] { started.store(true); });
  const auto caller = std::this_thread::get_id();
  std::atomic<bool> mine{false};
  const Deadline deadline = Deadline::After(kTimeout);
  while (!(started.load() && mine.load()) && !deadline.expired()) {
    loop->PostOrRun([&] { mine.store(std::this_thread::get_id() == caller); });
    std::this_thread::yield();
  }
  EXPECT_TRUE(mine.load());
}

TEST(OwnershipGuest, WakesTheSleepingWorkerForItsTimer) {
  auto loop = MakeRunningLoop();
  for (int i = 0; i < 50; ++i) {
    std::atomic<bool> fired{false};
    loop->PostOrRun(
        [&] { loop->AddTimerOnLoop(Clock::now() + milliseconds(1), [&] { fired.store(true); }); });
    const Deadline deadline = Deadline::After(kTimeout);
    while (!fired.load() && !deadline.expired()) std::this_thread::yield();
    ASSERT_TRUE(fired.load());
  }
}

TEST(OwnershipGuest, WakesAThreadThatSleepsAsOwnerForWhatItsTaskHasEnded) {
  for (int i = 0; i < 200; ++i) {
    auto loop = MakeLoop();
    std::atomic<bool> asked{false};
    std::atomic<bool> done{false};
    std::thread poster([&] {
      while (!asked.load()) std::this_thread::yield();
      loop->PostOrRun([&] {
        done.store(true);
        loop->NotifyWaiters();
      });
    });
    EXPECT_TRUE(Drive(*loop, [&] {
      asked.store(true);
      return done.load();
    }));
    poster.join();
  }
}

// Regression: the notification was consumed with the deferred work, and the owner slept on.
TEST(OwnershipGuest, WakesTheSleepingOwnerAlsoIfItsTaskHasDeferredWork) {
  struct Nothing final : EventLoop::Deferred {
    void RunDeferredOnLoop(EventLoop::Defer /*when*/) override {}
  };
  for (int i = 0; i < 200; ++i) {
    auto loop = MakeLoop();
    Nothing work;
    std::atomic<bool> asked{false};
    std::atomic<bool> done{false};
    std::thread poster([&] {
      while (!asked.load()) std::this_thread::yield();
      loop->PostOrRun([&] {
        loop->DeferOnLoop(EventLoop::Defer::kTurnEnd, &work);
        done.store(true);
        loop->NotifyWaiters();
      });
    });
    ASSERT_TRUE(Drive(*loop, [&] {
      asked.store(true);
      return done.load();
    }));
    poster.join();
  }
}

// The owner has looked at the queue before it fell asleep, and the guest counts as owner meanwhile.
TEST(OwnershipGuest, WakesTheSleepingOwnerForATaskThatItsTaskPosts) {
  auto loop = MakeLoop();
  const auto owner = std::this_thread::get_id();
  const Deadline deadline = Deadline::After(kTimeout);
  std::atomic<bool> driven{false};
  std::atomic<bool> entered{false};
  bool ran = false;  // on this thread, which drives
  loop->Post([&] { driven.store(true); });
  const std::jthread guest([&] {
    // From the owner's first task on, a guest gets in only while the owner sleeps.
    while (!driven.load() && !deadline.expired()) std::this_thread::yield();
    for (int pause = 1; !entered.load() && !deadline.expired(); ++pause) {
      loop->PostOrRun([&] {
        if (std::this_thread::get_id() == owner) return;  // the task was queued
        loop->Post([&] { ran = true; });
        entered.store(true);
      });
      // Longer each time, because a queued task keeps the owner awake.
      for (int i = 0; i < pause; ++i) std::this_thread::yield();
    }
  });
  EXPECT_TRUE(Drive(*loop, [&] { return ran; }));
}

// The owner may have fetched the handler's events and be on its way back.
TEST(OwnershipGuest, MayDestroyAHandlerWhileTheOwnerSleeps) {
  struct Counts final : EventLoop::Handler {
    explicit Counts(std::atomic<int>* c) : count(c) {}
    void OnEvents(std::uint32_t /*events*/) override { count->fetch_add(1); }
    std::atomic<int>* count;
  };
  auto loop = MakeRunningLoop();
  const UniqueFd fd = OwnershipSignal();
  std::atomic<int> events{0};
  std::atomic<bool> stop{false};
  std::thread signaller([&] {
    while (!stop.load()) {
      SignalEventFd(fd.get());
      std::this_thread::yield();
    }
  });
  for (int i = 0; i < 3000; ++i) {
    auto handler = std::make_shared<Counts>(&events);  // shared with both tasks
    loop->PostOrRun([&loop, &fd, handler] {
      EXPECT_TRUE(loop->WatchOnLoop(fd.get(), EPOLLIN, handler.get()));
    });
    loop->PostOrRun([&loop, &fd, handler = std::move(handler)] {
      loop->UnwatchOnLoop(fd.get(), handler.get());
    });
  }
  stop.store(true);
  signaller.join();
  loop->Stop();
}

TEST(PassiveWait, EndsTheWorkersLinger) {
  auto loop = MakeLoop(seconds(60));
  ASSERT_TRUE(loop->StartWorker("test-loop"));
  EXPECT_FALSE(loop->DriveUntil([] { return false; }, Deadline::After(milliseconds(5)), kNoSpin));
  std::atomic<bool> ran{false};
  const auto wait = loop->BeginPassiveWait();
  loop->Post([&] { ran.store(true); });
  const Deadline deadline = Deadline::After(kTimeout);
  while (!ran.load() && !deadline.expired()) std::this_thread::yield();
  EXPECT_TRUE(ran.load());
}

TEST(PassiveWait, EndsTheLingerOfAWorkerThatWasAskedToLeaveBefore) {
  auto loop = MakeLoop(seconds(60));
  ASSERT_TRUE(loop->StartWorker("test-loop"));
  std::promise<void> begun;
  std::promise<void> goes_on;
  loop->Post([&] {
    begun.set_value();
    goes_on.get_future().wait();
  });
  begun.get_future().wait();
  EXPECT_FALSE(loop->DriveUntil([] { return false; }, Deadline::After(milliseconds(5)), kNoSpin));
  const auto wait = loop->BeginPassiveWait();
  goes_on.set_value();
  std::atomic<bool> ran{false};
  // Posted when the worker has left the turn in which it was asked.
  const Deadline deadline = Deadline::After(kTimeout);
  loop->Post([&] { ran.store(true); });
  while (!ran.load() && !deadline.expired()) std::this_thread::yield();
  EXPECT_TRUE(ran.load());
}

TEST(PassiveWait, LetsTheWorkerDriveAsSoonAsAnotherThreadHasLeftTheLoop) {
  auto loop = MakeLoop(seconds(60));
  ASSERT_TRUE(loop->StartWorker("test-loop"));
  const auto wait = loop->BeginPassiveWait();
  EXPECT_FALSE(loop->DriveUntil([] { return false; }, Deadline::After(milliseconds(5)), kNoSpin));
  std::atomic<bool> ran{false};
  loop->Post([&] { ran.store(true); });
  const Deadline deadline = Deadline::After(kTimeout);
  while (!ran.load() && !deadline.expired()) std::this_thread::yield();
  EXPECT_TRUE(ran.load());
}

TEST(PassiveWait, MayOutliveItsLoop) {
  auto loop = MakeRunningLoop();
  EventLoop::PassiveWait wait = loop->BeginPassiveWait();
  wait = loop->BeginPassiveWait();
  loop.reset();
}

// ---- many that wait -----------------------------------------------------------------------------

// Regression: every wake-up woke all threads.
TEST(DriveUntil, OfManyThreadsWakesOnlyThoseWhoseConditionHasComeTrue) {
  constexpr int kThreads = 128;
  auto loop = MakeLoop();
  std::array<std::atomic<bool>, kThreads> done{};
  std::atomic<int> waiting{0};
  std::atomic<int> looks{0};  // evaluations by the waiting threads themselves
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      const auto self = std::this_thread::get_id();
      bool first = true;
      EXPECT_TRUE(Drive(*loop, [&] {
        if (std::this_thread::get_id() == self) looks.fetch_add(1);
        if (std::exchange(first, false)) waiting.fetch_add(1);
        return done[static_cast<std::size_t>(i)].load();
      }));
    });
  }
  while (waiting.load() < kThreads) std::this_thread::yield();
  for (int i = kThreads - 1; i >= 0; --i) {
    const auto at = static_cast<std::size_t>(i);
    done[at].store(true);
    loop->NotifyWaiters();
    threads[at].join();
  }
  // One evaluation on arrival and on departure, and one by the owner at each notification.
  EXPECT_LT(looks.load(), 20 * kThreads);
}

// Waits `rounds` times for a timer of its own; returns how many waits succeeded.
int WaitForTimers(EventLoop* loop, int rounds) {
  int ended = 0;
  for (int round = 0; round < rounds; ++round) {
    std::atomic<bool> done{false};
    loop->Post([&] {
      loop->AddTimerOnLoop(Clock::now() + microseconds(10), [&] {
        done.store(true);
        loop->NotifyWaiters();
      });
    });
    if (Drive(*loop, [&] { return done.load(); })) ++ended;
  }
  return ended;
}

TEST(DriveUntil, OfManyThreadsOneDrivesWhenTheOwnerHasItsEnd) {
  constexpr int kThreads = 32;
  constexpr int kRounds = 200;
  for (const bool with_worker : {false, true}) {
    auto loop = with_worker ? MakeRunningLoop() : MakeLoop(seconds(60));
    std::atomic<int> ended{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] { ended.fetch_add(WaitForTimers(loop.get(), kRounds)); });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(ended.load(), kThreads * kRounds);
  }
}

}  // namespace
}  // namespace ferry
