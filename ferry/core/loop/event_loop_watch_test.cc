// Tests of the loop's descriptors and deferred work.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ferry/core/fd.h"
#include "ferry/core/loop/event_loop.h"
#include "ferry/core/testing/event_loop_helpers.h"

namespace ferry {
namespace {

using testing::ElementsAre;

// ---- descriptors --------------------------------------------------------------------------------

class CountingHandler final : public EventLoop::Handler {
 public:
  explicit CountingHandler(std::function<void()> on_event = {}) : on_event_(std::move(on_event)) {}
  void OnEvents(std::uint32_t events) override {
    last_events = events;
    ++calls;
    if (on_event_) on_event_();
  }
  int calls = 0;
  std::uint32_t last_events = 0;

 private:
  std::function<void()> on_event_;
};

UniqueFd MakeSignal() {
  auto fd = MakeEventFd();
  EXPECT_TRUE(fd);
  return *std::move(fd);
}

TEST(EventLoopWatch, ReportsEachNewEventOnce) {
  auto loop = MakeLoop();
  const UniqueFd fd = MakeSignal();
  CountingHandler handler;
  loop->PostOrRun([&] { EXPECT_TRUE(loop->WatchOnLoop(fd.get(), EPOLLIN, &handler)); });
  Settle(*loop);
  EXPECT_EQ(handler.calls, 0);
  SignalEventFd(fd.get());
  Settle(*loop);
  EXPECT_EQ(handler.calls, 1);
  EXPECT_NE(handler.last_events & EPOLLIN, 0U);
  SignalEventFd(fd.get());
  Settle(*loop);
  EXPECT_EQ(handler.calls, 2);
  loop->PostOrRun([&] { loop->UnwatchOnLoop(fd.get(), &handler); });
  SignalEventFd(fd.get());
  Settle(*loop);
  EXPECT_EQ(handler.calls, 2);
}

TEST(EventLoopWatch, RefusesADescriptorThatIsWatchedAlready) {
  auto loop = MakeLoop();
  const UniqueFd fd = MakeSignal();
  CountingHandler handler;
  loop->PostOrRun([&] {
    EXPECT_TRUE(loop->WatchOnLoop(fd.get(), EPOLLIN, &handler));
    EXPECT_FALSE(loop->WatchOnLoop(fd.get(), EPOLLIN, &handler));
  });
}

// Both descriptors are ready in one batch; the first handler to run unwatches the other.
TEST(EventLoopWatch, DropsEventsOfAHandlerThatWasUnwatchedInTheSameBatch) {
  auto loop = MakeLoop();
  const UniqueFd first_fd = MakeSignal();
  const UniqueFd second_fd = MakeSignal();
  std::optional<CountingHandler> first;
  std::optional<CountingHandler> second;
  int calls = 0;
  first.emplace([&] {
    ++calls;
    loop->UnwatchOnLoop(second_fd.get(), &*second);
    second.reset();
  });
  second.emplace([&] {
    ++calls;
    loop->UnwatchOnLoop(first_fd.get(), &*first);
    first.reset();
  });
  loop->PostOrRun([&] {
    EXPECT_TRUE(loop->WatchOnLoop(first_fd.get(), EPOLLIN, &*first));
    EXPECT_TRUE(loop->WatchOnLoop(second_fd.get(), EPOLLIN, &*second));
  });
  SignalEventFd(first_fd.get());
  SignalEventFd(second_fd.get());
  Settle(*loop);
  EXPECT_EQ(calls, 1);
  EXPECT_NE(first.has_value(), second.has_value());
}

TEST(EventLoopWatch, LetsAHandlerUnwatchItself) {
  auto loop = MakeLoop();
  const UniqueFd fd = MakeSignal();
  std::optional<CountingHandler> handler;
  int calls = 0;
  handler.emplace([&] {
    ++calls;
    loop->UnwatchOnLoop(fd.get(), &*handler);
  });
  loop->PostOrRun([&] { EXPECT_TRUE(loop->WatchOnLoop(fd.get(), EPOLLIN, &*handler)); });
  SignalEventFd(fd.get());
  Settle(*loop);
  SignalEventFd(fd.get());
  Settle(*loop);
  EXPECT_EQ(calls, 1);
}

// ---- work that is put off -----------------------------------------------------------------------

class Recorder final : public EventLoop::Deferred {
 public:
  Recorder(std::string name, std::vector<std::string>* order)
      : name_(std::move(name)), order_(order) {}
  void RunDeferredOnLoop(EventLoop::Defer /*when*/) override {
    order_->push_back(name_);
    if (then) std::exchange(then, nullptr)();
  }
  std::function<void()> then;

 private:
  std::string name_;
  std::vector<std::string>* order_;
};

class DeferredWork : public testing::Test {
 protected:
  void Note(const char* what) { order_.emplace_back(what); }

  std::unique_ptr<EventLoop> loop_ = MakeLoop();
  std::vector<std::string> order_;
  Recorder turn_end_{"turn end", &order_};
  Recorder next_turn_{"next turn", &order_};
  Recorder idle_{"idle", &order_};
};

TEST_F(DeferredWork, RunsAtTheTurnsEndThenInTheNextTurnThenWhenIdle) {
  loop_->Post([&] {
    loop_->DeferOnLoop(EventLoop::Defer::kIdle, &idle_);
    loop_->DeferOnLoop(EventLoop::Defer::kNextTurn, &next_turn_);
    loop_->DeferOnLoop(EventLoop::Defer::kTurnEnd, &turn_end_);
    Note("task 1");
  });
  loop_->Post([&] { Note("task 2"); });
  Settle(*loop_);
  EXPECT_THAT(order_, ElementsAre("task 1", "task 2", "turn end", "next turn", "idle"));
}

TEST_F(DeferredWork, IdleWaitsUntilNothingElseIsLeft) {
  int left = 5;
  std::function<void()> chain = [&] {
    Note("task");
    if (--left > 0) loop_->Post([&] { chain(); });
  };
  loop_->Post([&] {
    loop_->DeferOnLoop(EventLoop::Defer::kIdle, &idle_);
    chain();
  });
  Settle(*loop_, 16);
  EXPECT_THAT(order_, ElementsAre("task", "task", "task", "task", "task", "idle"));
}

TEST_F(DeferredWork, WhatAsksAgainWaitsForItsNextMoment) {
  turn_end_.then = [&] { loop_->DeferOnLoop(EventLoop::Defer::kTurnEnd, &turn_end_); };
  next_turn_.then = [&] { loop_->DeferOnLoop(EventLoop::Defer::kNextTurn, &next_turn_); };
  loop_->Post([&] {
    loop_->DeferOnLoop(EventLoop::Defer::kTurnEnd, &turn_end_);
    loop_->DeferOnLoop(EventLoop::Defer::kNextTurn, &next_turn_);
    loop_->Post([&] { Note("task"); });
  });
  Settle(*loop_);
  EXPECT_THAT(order_, ElementsAre("turn end", "turn end", "next turn", "task", "next turn"));
}

TEST_F(DeferredWork, RunsAtTheTurnsEndAfterAllReadyDescriptors) {
  const UniqueFd first_fd = MakeSignal();
  const UniqueFd second_fd = MakeSignal();
  CountingHandler first([&] {
    Note("event");
    loop_->DeferOnLoop(EventLoop::Defer::kTurnEnd, &turn_end_);
  });
  CountingHandler second([&] { Note("event"); });
  loop_->PostOrRun([&] {
    EXPECT_TRUE(loop_->WatchOnLoop(first_fd.get(), EPOLLIN, &first));
    EXPECT_TRUE(loop_->WatchOnLoop(second_fd.get(), EPOLLIN, &second));
  });
  SignalEventFd(first_fd.get());
  SignalEventFd(second_fd.get());
  Settle(*loop_);
  EXPECT_THAT(order_, ElementsAre("event", "event", "turn end"));
}

TEST_F(DeferredWork, IsDroppedWhenCancelled) {
  loop_->Post([&] {
    loop_->DeferOnLoop(EventLoop::Defer::kTurnEnd, &turn_end_);
    loop_->DeferOnLoop(EventLoop::Defer::kNextTurn, &next_turn_);
    loop_->DeferOnLoop(EventLoop::Defer::kIdle, &idle_);
    loop_->CancelDeferredOnLoop(&turn_end_);
    loop_->CancelDeferredOnLoop(&next_turn_);
    loop_->CancelDeferredOnLoop(&idle_);
  });
  Settle(*loop_);
  EXPECT_TRUE(order_.empty());
}

TEST_F(DeferredWork, IsRunOnceHoweverOftenItWasAskedFor) {
  loop_->Post([&] {
    loop_->DeferOnLoop(EventLoop::Defer::kTurnEnd, &turn_end_);
    loop_->DeferOnLoop(EventLoop::Defer::kTurnEnd, &turn_end_);
    loop_->DeferOnLoop(EventLoop::Defer::kNextTurn, &turn_end_);
  });
  Settle(*loop_);
  EXPECT_THAT(order_, ElementsAre("turn end", "turn end"));
}

TEST_F(DeferredWork, MayBeCancelledByWhatRunsBeforeItInItsBatch) {
  next_turn_.then = [&] {
    loop_->CancelDeferredOnLoop(&turn_end_);
    loop_->DeferOnLoop(EventLoop::Defer::kNextTurn, &idle_);
  };
  loop_->Post([&] {
    loop_->DeferOnLoop(EventLoop::Defer::kTurnEnd, &next_turn_);
    loop_->DeferOnLoop(EventLoop::Defer::kTurnEnd, &turn_end_);
  });
  Settle(*loop_);
  EXPECT_THAT(order_, ElementsAre("next turn", "idle"));
}

// Regression: each cancellation moved all later entries, which took minutes for this many.
TEST_F(DeferredWork, TakesTimeByItsCountAndNoMore) {
  constexpr int kMany = 400'000;
  struct Counts final : EventLoop::Deferred {
    void RunDeferredOnLoop(EventLoop::Defer /*when*/) override { ++runs; }
    int runs = 0;
  };
  const auto many = std::make_unique<Counts[]>(kMany);  // their list nodes must not move
  const auto start = Clock::now();
  loop_->Post([&] {
    for (std::size_t i = 0; i < kMany; ++i)
      loop_->DeferOnLoop(EventLoop::Defer::kTurnEnd, &many[i]);
    for (std::size_t i = 0; i < kMany; i += 2) loop_->CancelDeferredOnLoop(&many[i]);
  });
  Settle(*loop_);
  EXPECT_LT(Clock::now() - start, kTimeout);
  for (std::size_t i = 0; i < kMany; ++i) ASSERT_EQ(many[i].runs, static_cast<int>(i % 2)) << i;
}

TEST_F(DeferredWork, NextTurnDoesNotWaitForAnEvent) {
  bool ran = false;
  next_turn_.then = [&] { ran = true; };
  loop_->Post([&] { loop_->DeferOnLoop(EventLoop::Defer::kNextTurn, &next_turn_); });
  EXPECT_TRUE(Drive(*loop_, [&] { return ran; }));
}

TEST_F(DeferredWork, IdleDoesNotWaitForAnEvent) {
  bool ran = false;
  idle_.then = [&] { ran = true; };
  loop_->Post([&] { loop_->DeferOnLoop(EventLoop::Defer::kIdle, &idle_); });
  EXPECT_TRUE(Drive(*loop_, [&] { return ran; }));
}

}  // namespace
}  // namespace ferry
