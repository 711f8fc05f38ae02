// Tests of the loop's tasks, timers and owners.
#include "ferry/core/loop/event_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ferry/core/testing/event_loop_helpers.h"

namespace ferry {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;

// An event that is set once and waited for with a deadline.
class Flag {
 public:
  void Set() {
    const std::lock_guard lock(mutex_);
    set_ = true;
    changed_.notify_all();
  }
  bool IsSet() const {
    const std::lock_guard lock(mutex_);
    return set_;
  }
  bool WaitFor(Clock::duration wait = kTimeout) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, Clock::now() + wait, [this] { return set_; });
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool set_ = false;
};

// Runs `body(0)` to `body(count - 1)`, each on its own thread.
void RunThreads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) threads[static_cast<std::size_t>(i)] = std::thread(body, i);
  for (std::thread& thread : threads) thread.join();
}

// How often the thread with this name has slept; -1 if there is no such thread.
std::int64_t SleepsOf(const std::string& thread_name) {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    std::string word;
    std::string name;
    while (status >> word) {
      if (word == "Name:") status >> name;
      std::int64_t count = -1;
      if (word == "voluntary_ctxt_switches:" && status >> count && name == thread_name)
        return count;
    }
  }
  return -1;
}

// ---- tasks --------------------------------------------------------------------------------------

TEST(EventLoop, RunsTheTasksOfEachThreadInTheirOrder) {
  constexpr int kThreads = 4;
  constexpr int kTasks = 2000;
  auto loop = MakeRunningLoop();
  std::array<std::vector<int>, kThreads> seen;  // written on the loop only
  RunThreads(kThreads, [&](int thread) {
    auto& mine = seen[static_cast<std::size_t>(thread)];
    for (int i = 0; i < kTasks; ++i) loop->Post([&mine, i] { mine.push_back(i); });
  });
  Flag last;
  loop->Post([&] { last.Set(); });
  ASSERT_TRUE(last.WaitFor());
  std::vector<int> expected(kTasks);
  std::iota(expected.begin(), expected.end(), 0);
  for (const auto& order : seen) EXPECT_EQ(order, expected);
}

TEST(EventLoop, KnowsWhichThreadDrives) {
  auto loop = MakeRunningLoop();
  EXPECT_FALSE(loop->InLoop());
  Flag ran;
  bool in_loop = false;
  loop->Post([&] {
    in_loop = loop->InLoop();
    ran.Set();
  });
  ASSERT_TRUE(ran.WaitFor());
  EXPECT_TRUE(in_loop);
  EXPECT_FALSE(loop->InLoop());
}

TEST(EventLoop, RunsTasksWhetherItsWorkerSpinsOrSleeps) {
  auto loop = MakeLoop();
  ASSERT_TRUE(loop->StartWorker("test", milliseconds(2)));
  for (int i = 0; i < 20; ++i) {
    Flag ran;
    loop->Post([&] { ran.Set(); });
    ASSERT_TRUE(ran.WaitFor());
    if (i % 2 == 0) continue;
    // Long enough for the worker to fall asleep.
    Flag later;
    loop->Post([&] { loop->AddTimerOnLoop(Clock::now() + milliseconds(4), [&] { later.Set(); }); });
    ASSERT_TRUE(later.WaitFor());
  }
}

TEST(EventLoop, RunsTasksOfWorkersThatShareFewerPermitsToSpin) {
  SpinPermits permits(1);
  {
    auto first = MakeLoop();
    auto second = MakeLoop();
    for (EventLoop* loop : {first.get(), second.get()}) {
      ASSERT_TRUE(loop->StartWorker("test", milliseconds(2), &permits));
    }
    for (int i = 0; i < 20; ++i) {
      Flag ran[2];
      first->Post([&] { ran[0].Set(); });
      second->Post([&] { ran[1].Set(); });
      ASSERT_TRUE(ran[0].WaitFor());
      ASSERT_TRUE(ran[1].WaitFor());
    }
  }
  EXPECT_TRUE(permits.Take());  // the worker returned its permit, and there is one
  EXPECT_FALSE(permits.Take());
}

TEST(EventLoop, WakesASleepingOwnerForAPostedTask) {
  auto loop = MakeLoop();
  bool ran = false;  // on this thread, which drives
  std::atomic<bool> asked{false};
  std::thread poster([&] {
    while (!asked.load()) std::this_thread::yield();
    loop->Post([&] { ran = true; });
  });
  EXPECT_TRUE(Drive(*loop, [&] {
    asked.store(true);
    return ran;
  }));
  poster.join();
}

TEST(EventLoop, PostOrRunRunsInlineWhenTheLoopIsFree) {
  auto loop = MakeLoop();
  std::thread::id ran_by;
  loop->PostOrRun([&] { ran_by = std::this_thread::get_id(); });
  EXPECT_EQ(ran_by, std::this_thread::get_id());
}

// Posted tasks rely on turns between them.
TEST(EventLoop, PostOrRunNeitherOvertakesNorRunsWhatWasPostedBefore) {
  auto loop = MakeLoop();
  std::vector<int> order;
  loop->Post([&] { order.push_back(1); });
  loop->PostOrRun([&] { order.push_back(2); });
  EXPECT_THAT(order, ElementsAre());
  Settle(*loop);
  EXPECT_THAT(order, ElementsAre(1, 2));
}

TEST(EventLoop, PostOrRunFromATaskDoesNotNest) {
  auto loop = MakeLoop();
  std::vector<int> order;
  loop->PostOrRun([&] {
    loop->PostOrRun([&] { order.push_back(2); });
    order.push_back(1);
  });
  Settle(*loop);
  EXPECT_THAT(order, ElementsAre(1, 2));
}

TEST(EventLoop, PostOrRunHandsOverToAThreadThatDrives) {
  auto loop = MakeRunningLoop();
  Flag entered;
  Flag release;
  loop->Post([&] {
    entered.Set();
    EXPECT_TRUE(release.WaitFor());
  });
  ASSERT_TRUE(entered.WaitFor());
  Flag ran;
  std::thread::id ran_by;
  loop->PostOrRun([&] {
    ran_by = std::this_thread::get_id();
    ran.Set();
  });
  EXPECT_FALSE(ran.IsSet());
  release.Set();
  ASSERT_TRUE(ran.WaitFor());
  EXPECT_NE(ran_by, std::this_thread::get_id());
}

// ---- timers -------------------------------------------------------------------------------------

TEST(EventLoop, FiresTimersInTheOrderOfTheirTimesAndNotBefore) {
  auto loop = MakeLoop();
  std::vector<int> order;
  const auto start = Clock::now();
  loop->PostOrRun([&] {
    loop->AddTimerOnLoop(start + milliseconds(20), [&] { order.push_back(2); });
    loop->AddTimerOnLoop(start + milliseconds(30), [&] { order.push_back(3); });
    loop->AddTimerOnLoop(start + milliseconds(10), [&] { order.push_back(1); });
    loop->AddTimerOnLoop(start + milliseconds(20), [&] { order.push_back(22); });
  });
  ASSERT_TRUE(Drive(*loop, [&] { return order.size() == 4; }));
  EXPECT_GE(Clock::now() - start, milliseconds(30));
  EXPECT_THAT(order, ElementsAre(1, 2, 22, 3));
}

TEST(EventLoop, DoesNotFireACancelledTimer) {
  auto loop = MakeLoop();
  std::vector<int> order;
  loop->PostOrRun([&] {
    const auto now = Clock::now();
    const auto second = loop->AddTimerOnLoop(now + milliseconds(2), [&] { order.push_back(2); });
    const auto third = loop->AddTimerOnLoop(now + milliseconds(3), [&] { order.push_back(3); });
    // Due together with the timer that it cancels, whether the machine is slow or not.
    loop->AddTimerOnLoop(now + milliseconds(1), [&, third] {
      order.push_back(1);
      loop->CancelTimerOnLoop(third);
    });
    loop->CancelTimerOnLoop(second);
    loop->CancelTimerOnLoop(second);
    loop->AddTimerOnLoop(now + milliseconds(4), [&] { order.push_back(4); });
  });
  ASSERT_TRUE(Drive(*loop, [&] { return order.size() == 2; }));
  EXPECT_THAT(order, ElementsAre(1, 4));
}

TEST(EventLoop, LetsATimerAddTheNext) {
  auto loop = MakeRunningLoop();
  Flag done;
  int rounds = 0;
  std::function<void()> next = [&] {
    if (++rounds == 5) return done.Set();
    loop->AddTimerOnLoop(Clock::now() + milliseconds(1), [&] { next(); });
  };
  loop->Post([&] { next(); });
  ASSERT_TRUE(done.WaitFor());
  loop->Stop();
  EXPECT_EQ(rounds, 5);
}

// Regression: all queued tasks ran before timers and descriptors were looked at.
TEST(EventLoop, LooksAtTimersBetweenTheTasksOfALongQueue) {
  constexpr int kTasks = 10'000;
  auto loop = MakeLoop();
  int ran = 0;
  int ran_before_timer = 0;
  loop->PostOrRun(
      [&] { loop->AddTimerOnLoop(Clock::time_point{}, [&] { ran_before_timer = ran; }); });
  for (int i = 0; i < kTasks; ++i) loop->Post([&] { ++ran; });
  EXPECT_TRUE(Drive(*loop, [&] { return ran == kTasks; }));
  EXPECT_GT(ran_before_timer, 0);
  EXPECT_LT(ran_before_timer, kTasks / 10);
}

// Regression: the timer ran again and again, and nothing else did.
TEST(EventLoop, IsNotHeldUpByATimerThatAddsOneForNow) {
  auto loop = MakeLoop();
  bool stop = false;
  int fired = 0;
  std::function<void()> again = [&] {
    ++fired;
    if (!stop && fired < 1'000'000) loop->AddTimerOnLoop(Clock::time_point{}, [&] { again(); });
  };
  loop->PostOrRun([&] { again(); });
  bool ran = false;
  loop->Post([&] { ran = true; });
  EXPECT_TRUE(Drive(*loop, [&] { return ran && fired > 3; }));
  EXPECT_LT(fired, 1000);
  stop = true;
}

// ---- loop ownership -----------------------------------------------------------------------------

TEST(DriveUntil, ReturnsAtOnceWhenTheConditionHolds) {
  auto loop = MakeLoop();
  bool ran = false;
  loop->Post([&] { ran = true; });
  EXPECT_TRUE(loop->DriveUntil([] { return true; }, Deadline::Never(), kNoSpin));
  EXPECT_FALSE(ran);
}

TEST(DriveUntil, ReturnsFalseAtItsDeadline) {
  for (const bool with_worker : {false, true}) {
    auto loop = with_worker ? MakeRunningLoop() : MakeLoop();
    const Deadline deadline = Deadline::After(milliseconds(20));
    EXPECT_FALSE(loop->DriveUntil([] { return false; }, deadline, kNoSpin));
    EXPECT_TRUE(deadline.expired());
    EXPECT_FALSE(loop->DriveUntil([] { return false; }, Deadline::After(milliseconds(5)),
                                  microseconds(500)));
  }
}

// The only waiting thread is the owner itself, asleep with nothing to wake it.
void WaitForAnotherThread(EventLoop& loop) {
  std::atomic<bool> asked{false};
  std::atomic<bool> done{false};
  std::thread other([&] {
    while (!asked.load()) std::this_thread::yield();
    done.store(true, std::memory_order_release);
    loop.NotifyWaiters();
  });
  EXPECT_TRUE(Drive(loop, [&] {
    asked.store(true);
    return done.load(std::memory_order_acquire);
  }));
  other.join();
}

TEST(DriveUntil, ReturnsWhenAnotherThreadMakesTheConditionTrue) {
  for (const bool with_worker : {false, true}) {
    auto loop = with_worker ? MakeRunningLoop() : MakeLoop();
    for (int round = 0; round < 100 && !testing::Test::HasFailure(); ++round)
      WaitForAnotherThread(*loop);
  }
}

bool WaitForOwnTask(EventLoop& loop) {
  std::atomic<bool> done{false};
  loop.PostOrRun([&] {
    done.store(true, std::memory_order_release);
    loop.NotifyWaiters();
  });
  return Drive(loop, [&] { return done.load(std::memory_order_acquire); });
}

TEST(DriveUntil, GivesEachOfSeveralWaitingThreadsItsCompletion) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 500;
  for (const bool with_worker : {false, true}) {
    auto loop = with_worker ? MakeRunningLoop() : MakeLoop();
    std::atomic<int> completed{0};
    RunThreads(kThreads, [&](int) {
      for (int i = 0; i < kRounds && WaitForOwnTask(*loop); ++i) completed.fetch_add(1);
    });
    EXPECT_EQ(completed.load(), kThreads * kRounds);
  }
}

// Posts itself until the given thread runs it.
void RunUntilOn(EventLoop& loop, std::thread::id thread, std::atomic<bool>* ran) {
  if (std::this_thread::get_id() == thread) return ran->store(loop.InLoop());
  loop.Post([&loop, thread, ran] { RunUntilOn(loop, thread, ran); });
}

TEST(DriveUntil, MakesTheCallingThreadTheOwner) {
  auto loop = MakeRunningLoop();
  std::atomic<bool> mine{false};
  const auto caller = std::this_thread::get_id();
  loop->Post([&] { RunUntilOn(*loop, caller, &mine); });
  EXPECT_TRUE(Drive(*loop, [&] { return mine.load(); }));
}

TEST(DriveUntil, LeavesTheLoopToTheWorkerAfterwards) {
  auto loop = MakeRunningLoop();
  EXPECT_FALSE(loop->DriveUntil([] { return false; }, Deadline::After(milliseconds(1)), kNoSpin));
  Flag ran;
  std::thread::id ran_by;
  loop->Post([&] {
    ran_by = std::this_thread::get_id();
    ran.Set();
  });
  ASSERT_TRUE(ran.WaitFor());
  EXPECT_NE(ran_by, std::this_thread::get_id());
}

// Regression: the worker woke up and went back to sleep while it kept ownership.
TEST(DriveOnce, MakesAnIdleWorkerLeaveTheLoop) {
  auto loop = MakeLoop(seconds(60));  // how long the worker stays away
  ASSERT_TRUE(loop->StartWorker("test-loop"));
  Flag started;
  loop->Post([&] { started.Set(); });
  ASSERT_TRUE(started.WaitFor());
  loop->DriveOnce();
  std::atomic<bool> mine{false};
  const auto caller = std::this_thread::get_id();
  const Deadline deadline = Deadline::After(kTimeout);
  while (!mine.load() && !deadline.expired()) {
    loop->Post([&] { mine.store(std::this_thread::get_id() == caller); });
    loop->DriveOnce();
    std::this_thread::yield();
  }
  EXPECT_TRUE(mine.load());
}

TEST(DriveOnce, HandlesWhatIsReadyWithoutSleeping) {
  auto loop = MakeLoop();
  loop->DriveOnce();
  bool ran = false;
  loop->Post([&] { ran = true; });
  loop->DriveOnce();
  EXPECT_TRUE(ran);
}

void StopWhileThreadsWait(EventLoop& loop) {
  constexpr int kThreads = 3;
  std::array<std::atomic<bool>, kThreads> asked{};
  std::thread stopper([&] {
    for (const auto& flag : asked) {
      while (!flag.load()) std::this_thread::yield();
    }
    loop.Stop();
  });
  RunThreads(kThreads, [&](int thread) {
    const auto never = [&] {
      asked[static_cast<std::size_t>(thread)].store(true);
      return false;
    };
    EXPECT_FALSE(loop.DriveUntil(never, Deadline::Never(), kNoSpin));
  });
  stopper.join();
}

TEST(EventLoopStop, EndsTheWaitOfEveryThread) {
  StopWhileThreadsWait(*MakeLoop());
  StopWhileThreadsWait(*MakeRunningLoop());
}

// Lanes and listeners may be destroyed by any thread after Stop(). Regression: it returned while an
// application thread was still in their callbacks.
TEST(EventLoopStop, WaitsForTheTurnOfAThreadThatDrives) {
  auto loop = MakeLoop();
  Flag in_task;
  Flag stopped;
  bool stopped_first = false;
  loop->Post([&] {
    in_task.Set();
    stopped_first = stopped.WaitFor(milliseconds(50));
  });
  std::thread caller(
      [&] { (void)loop->DriveUntil([] { return false; }, Deadline::Never(), kNoSpin); });
  EXPECT_TRUE(in_task.WaitFor());
  loop->Stop();
  stopped.Set();
  caller.join();
  EXPECT_FALSE(stopped_first);
}

TEST(EventLoopStop, DestroysQueuedTasksAndTimersWithoutRunningThem) {
  auto loop = MakeLoop();
  const auto owned = std::make_shared<int>(1);  // counts the remaining callables
  bool ran = false;
  loop->PostOrRun([&] {
    loop->AddTimerOnLoop(Clock::now(), [&ran, owned] { ran = true; });
    loop->AddTimerOnLoop(Clock::time_point::max(), [&ran, owned] { ran = true; });
  });
  loop->Post([&ran, owned] { ran = true; });
  EXPECT_EQ(owned.use_count(), 4);
  loop->Stop();
  EXPECT_EQ(owned.use_count(), 1);
  EXPECT_FALSE(ran);
  EXPECT_FALSE(loop->DriveUntil([] { return false; }, Deadline::Never(), kNoSpin));
}

// Checking once per linger of 1 ms would be about 300 wake-ups.
TEST(EventLoop, WorkerSleepsThroughAVisitThatLasts) {
  auto loop = EventLoop::Create();
  ASSERT_TRUE(loop);
  ASSERT_TRUE((*loop)->StartWorker("rests"));
  Flag up;  // the worker has its name
  (*loop)->Post([&] { up.Set(); });
  ASSERT_TRUE(up.WaitFor());
  const auto never = [] { return false; };
  (void)(*loop)->DriveUntil(never, Deadline::After(milliseconds(50)), microseconds(0));
  const std::int64_t before = SleepsOf("rests");
  ASSERT_GE(before, 0);
  (void)(*loop)->DriveUntil(never, Deadline::After(milliseconds(300)), microseconds(0));
  EXPECT_LE(SleepsOf("rests") - before, 20);
  // The worker takes over again.
  Flag ran;
  (*loop)->Post([&] { ran.Set(); });
  EXPECT_TRUE(ran.WaitFor());
}

}  // namespace
}  // namespace ferry
