// Tests the queue of operations that a lane pulls slices from.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "ferry/transfer/lane/slice_sender.h"
#include "ferry/transfer/testing/cost.h"

namespace ferry::transfer {
namespace {

WorkQueue::Op WorkOf(std::uint64_t slices) {
  auto operation = std::make_shared<OperationState>();
  operation->ledger.Begin(slices);
  return operation;
}

TEST(WorkQueue, GivesOperationsInTurn) {
  WorkQueue queue;
  EXPECT_TRUE(queue.empty());
  const auto first = WorkOf(2);
  const auto second = WorkOf(2);
  queue.Add(first);
  queue.Add(second);
  EXPECT_EQ(queue.front(), first);
  queue.Rotate();
  EXPECT_EQ(queue.front(), second);
  queue.Rotate();
  EXPECT_EQ(queue.front(), first);
  queue.Pop();
  EXPECT_EQ(queue.front(), second);
  queue.Pop();
  EXPECT_TRUE(queue.empty());
}

TEST(WorkQueue, CountsTheTurnsOfAnOperation) {
  WorkQueue queue;
  const auto first = WorkOf(3);
  queue.Add(first);
  EXPECT_EQ(queue.front_turns(), 0u);
  queue.Rotate();
  EXPECT_EQ(queue.front(), first);
  EXPECT_EQ(queue.front_turns(), 1u);
  const auto second = WorkOf(2);
  queue.Add(second);
  queue.Rotate();
  EXPECT_EQ(queue.front_turns(), 0u);
  queue.Rotate();
  EXPECT_EQ(queue.front_turns(), 2u);
  queue.Pop();
  queue.Add(first);
  queue.Rotate();
  EXPECT_EQ(queue.front_turns(), 0u);
}

TEST(WorkQueue, HasAnOperationOnceUntilItLeaves) {
  WorkQueue queue;
  const auto first = WorkOf(1);
  const auto second = WorkOf(1);
  queue.Add(first);
  queue.Add(second);
  queue.Add(first);
  EXPECT_EQ(queue.size(), 2u);
  queue.Rotate();
  queue.Add(first);
  EXPECT_EQ(queue.size(), 2u);
  queue.Pop();
  queue.Add(second);
  EXPECT_EQ(queue.size(), 2u);
  queue.Clear();
  EXPECT_TRUE(queue.empty());
  queue.Add(first);
  EXPECT_EQ(queue.size(), 1u);
}

TEST(WorkQueue, LetsGoOfCancelledOperationsThoughNobodyPullsFromIt) {
  WorkQueue queue;
  const auto waits = WorkOf(1);
  queue.Add(waits);
  std::vector<std::weak_ptr<OperationState>> all;
  for (int i = 0; i < 10'000; ++i) {
    const auto cancelled = WorkOf(1);
    queue.Add(cancelled);
    EXPECT_TRUE(cancelled->ledger.Stop(Error(Code::kCancelled, "cancelled")));
    all.push_back(cancelled);
  }
  std::size_t held = 0;
  for (const auto& each : all) held += each.expired() ? 0 : 1;
  EXPECT_LT(held, 200u);
  EXPECT_EQ(queue.front(), waits);
}

TEST(WorkQueue, TakesAnOperationBackOfWhichASliceWasGivenBack) {
  WorkQueue queue;
  const auto operation = WorkOf(1);
  EXPECT_TRUE(operation->ledger.Pull());  // by another lane
  queue.Add(operation);
  for (int i = 0; i < 1'000; ++i) queue.Add(WorkOf(1));
  EXPECT_NE(queue.front(), operation);
  EXPECT_EQ(queue.size(), 1'000u);
  EXPECT_FALSE(operation->ledger.Return(0));
  queue.Add(operation);
  EXPECT_EQ(queue.size(), 1'001u);
}

TEST(WorkQueue, AddsAnOperationWithoutASearchThroughAll) {
  const auto growth = CostGrowth([](std::size_t count) {
    auto queue = std::make_shared<WorkQueue>();
    for (std::size_t i = 0; i < count; ++i) queue->Add(WorkOf(1));
    return [queue] {
      queue->Add(WorkOf(1));
      queue->Pop();
    };
  });
  EXPECT_LT(growth, kMaxGrowth);
}

}  // namespace
}  // namespace ferry::transfer
