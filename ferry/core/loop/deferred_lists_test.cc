// Tests of a loop's deferred work.
#include "ferry/core/loop/deferred_lists.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace ferry {
namespace {

using Defer = EventLoop::Defer;
using testing::ElementsAre;

class NotedWork final : public EventLoop::Deferred {
 public:
  NotedWork(std::string name, std::vector<std::string>* order)
      : name_(std::move(name)), order_(order) {}
  void RunDeferredOnLoop(Defer when) override {
    order_->push_back(name_ + "@" + std::to_string(static_cast<int>(when)));
    if (then) then();
  }
  std::function<void()> then;

 private:
  std::string name_;
  std::vector<std::string>* order_;
};

class DeferredListsTest : public testing::Test {
 protected:
  DeferredLists lists_;
  std::vector<std::string> order_;
  NotedWork a_{"a", &order_};
  NotedWork b_{"b", &order_};
};

TEST_F(DeferredListsTest, RunsWorkOnceInTheOrderOfTheFirstRequests) {
  lists_.Request(Defer::kTurnEnd, &a_);
  lists_.Request(Defer::kTurnEnd, &b_);
  lists_.Request(Defer::kTurnEnd, &a_);
  EXPECT_TRUE(lists_.has_soon());
  EXPECT_TRUE(lists_.Run(Defer::kTurnEnd));
  EXPECT_THAT(order_, ElementsAre("a@0", "b@0"));
  EXPECT_FALSE(lists_.has_soon());
  EXPECT_FALSE(lists_.Run(Defer::kTurnEnd));
}

TEST_F(DeferredListsTest, KeepsEachMomentApart) {
  lists_.Request(Defer::kIdle, &a_);
  EXPECT_FALSE(lists_.has_soon());
  EXPECT_FALSE(lists_.empty(Defer::kIdle));
  lists_.Request(Defer::kNextTurn, &a_);
  EXPECT_TRUE(lists_.has_soon());
  EXPECT_FALSE(lists_.Run(Defer::kTurnEnd));
  EXPECT_TRUE(lists_.Run(Defer::kNextTurn));
  EXPECT_TRUE(lists_.Run(Defer::kIdle));
  EXPECT_THAT(order_, ElementsAre("a@1", "a@2"));
}

TEST_F(DeferredListsTest, RunsWhatWorkDefersToTheTurnsEndRightAfterIt) {
  a_.then = [&] { lists_.Request(Defer::kTurnEnd, &b_); };
  lists_.Request(Defer::kNextTurn, &a_);
  EXPECT_TRUE(lists_.Run(Defer::kNextTurn));
  EXPECT_THAT(order_, ElementsAre("a@1", "b@0"));
}

TEST_F(DeferredListsTest, LeavesWorkThatRequestsItselfToTheNextCall) {
  a_.then = [&] { lists_.Request(Defer::kTurnEnd, &a_); };
  lists_.Request(Defer::kTurnEnd, &a_);
  EXPECT_TRUE(lists_.Run(Defer::kTurnEnd));
  EXPECT_THAT(order_, ElementsAre("a@0"));
  EXPECT_TRUE(lists_.has_soon());
}

TEST_F(DeferredListsTest, CancelsWorkOfTheBatchThatIsRunning) {
  a_.then = [&] { DeferredLists::Cancel(&b_); };
  lists_.Request(Defer::kTurnEnd, &a_);
  lists_.Request(Defer::kTurnEnd, &b_);
  lists_.Request(Defer::kIdle, &b_);
  EXPECT_TRUE(lists_.Run(Defer::kTurnEnd));
  EXPECT_THAT(order_, ElementsAre("a@0"));
  EXPECT_TRUE(lists_.empty(Defer::kIdle));
}

TEST_F(DeferredListsTest, DropsEverythingWhenCleared) {
  lists_.Request(Defer::kTurnEnd, &a_);
  lists_.Request(Defer::kIdle, &b_);
  lists_.Clear();
  EXPECT_FALSE(lists_.Run(Defer::kTurnEnd));
  EXPECT_FALSE(lists_.Run(Defer::kIdle));
  EXPECT_THAT(order_, ElementsAre());
}

}  // namespace
}  // namespace ferry
