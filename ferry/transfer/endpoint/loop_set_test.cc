// Tests of the distribution of lanes to an endpoint's loops.
#include "ferry/transfer/endpoint/loop_set.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>

#include "ferry/transfer/testing/linked_endpoints.h"

namespace ferry::transfer {
namespace {

TEST(LoopSet, PutsTheFirstBulkLaneOnTheHomeLoop) {
  LoopSet loops;
  ASSERT_TRUE(loops.Create(2));
  const auto chosen = loops.Choose(3);
  ASSERT_EQ(chosen.size(), 3U);
  EXPECT_EQ(chosen[0], chosen[1]);
  EXPECT_NE(chosen[1], chosen[2]);
}

TEST(LoopSet, SpreadsBulkLanesOverAllLoops) {
  LoopSet loops;
  ASSERT_TRUE(loops.Create(4));
  const auto chosen = loops.Choose(5);
  EXPECT_EQ(std::set<EventLoop*>(chosen.begin() + 1, chosen.end()).size(), 4U);
}

TEST(LoopSet, StartsSuccessiveConnectionsAtDifferentLoops) {
  LoopSet loops;
  ASSERT_TRUE(loops.Create(2));
  EventLoop* const first = loops.Choose(1).front();
  EventLoop* const second = loops.Choose(1).front();
  EXPECT_EQ(first, loops.front());
  EXPECT_NE(first, second);
  EXPECT_EQ(loops.Choose(1).front(), first);
}

TEST(LoopSet, RunsTasksOnEveryLoopUntilItIsStopped) {
  LoopSet loops;
  ASSERT_TRUE(loops.Create(3));
  ASSERT_TRUE(loops.StartWorkers());
  std::atomic<int> ran{0};
  for (int i = 0; i < 3; ++i) {
    loops.Choose(1).front()->Post([&] { ran.fetch_add(1); });
  }
  const Deadline deadline = Soon();
  while (ran.load() < 3 && !deadline.expired()) std::this_thread::yield();
  EXPECT_EQ(ran.load(), 3);
  loops.Stop();
}

}  // namespace
}  // namespace ferry::transfer
