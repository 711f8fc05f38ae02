// Tests of the queue at every fill level, and across two threads.
#include "ferry/core/spsc_queue.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <thread>

namespace ferry {
namespace {

TEST(SpscQueue, GivesItemsBackInOrder) {
  SpscQueue<int> queue(4);
  EXPECT_TRUE(queue.empty());
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(queue.TryPush(i));
  EXPECT_FALSE(queue.empty());
  EXPECT_FALSE(queue.TryPush(4));
  int value = -1;
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(queue.TryPop(value));
    EXPECT_EQ(value, i);
  }
  EXPECT_FALSE(queue.TryPop(value));
  EXPECT_EQ(value, 3);
}

// Every fill level at every position of an 8-bit index, twice around.
template <std::size_t kCapacity>
void CompareWithDeque() {
  SpscQueue<int, std::uint8_t> queue(kCapacity);
  std::deque<int> model;
  int next = 0;
  int value = 0;
  const auto push = [&] {
    const bool pushed = queue.TryPush(next);
    ASSERT_EQ(pushed, model.size() < kCapacity);
    if (pushed) model.push_back(next++);
  };
  const auto pop = [&] {
    const bool popped = queue.TryPop(value);
    ASSERT_EQ(popped, !model.empty());
    if (!popped) return;
    ASSERT_EQ(value, model.front());
    model.pop_front();
  };
  for (int lap = 0; lap < 512; ++lap) {
    for (std::size_t i = 0; i <= kCapacity; ++i) push();
    for (std::size_t i = 0; i <= kCapacity; ++i) pop();
    push();  // moves the start of the next lap by one position
    pop();
  }
}

TEST(SpscQueue, AgreesWithADequeWhileItsIndexWrapsAround) {
  CompareWithDeque<1>();
  CompareWithDeque<2>();
  CompareWithDeque<4>();
  CompareWithDeque<128>();
}

TEST(SpscQueue, LeavesTheValueAloneWhenFull) {
  SpscQueue<std::unique_ptr<int>> queue(1);
  EXPECT_TRUE(queue.TryPush(std::make_unique<int>(1)));
  auto second = std::make_unique<int>(2);
  EXPECT_FALSE(queue.TryPush(std::move(second)));
  ASSERT_NE(second, nullptr);  // NOLINT(bugprone-use-after-move): tests that it was not moved from
  EXPECT_EQ(*second, 2);       // NOLINT(bugprone-use-after-move)
}

using SmallIndexQueue = SpscQueue<std::uint32_t, std::uint8_t>;

void PushAll(SmallIndexQueue& queue, std::uint32_t items) {
  for (std::uint32_t i = 0; i < items; ++i) {
    while (!queue.TryPush(i)) std::this_thread::yield();
  }
}

TEST(SpscQueue, CarriesEveryItemBetweenTwoThreads) {
  constexpr std::uint32_t kItems = 100'000;
  SmallIndexQueue queue(64);
  const std::jthread producer([&] { PushAll(queue, kItems); });
  std::uint32_t wrong = 0;
  for (std::uint32_t i = 0; i < kItems; ++i) {
    std::uint32_t value = 0;
    while (!queue.TryPop(value)) std::this_thread::yield();
    if (value != i) ++wrong;
  }
  EXPECT_EQ(wrong, 0u);
  EXPECT_TRUE(queue.empty());
}

TEST(SpscQueueDeathTest, RefusesCapacitiesThatItsIndexCannotTellApart) {
  using Tiny = SpscQueue<int, std::uint8_t>;
  static_assert(Tiny::kMaxCapacity == 128);
  EXPECT_DEATH(Tiny(0), "check failed");
  EXPECT_DEATH(Tiny(3), "check failed");
  EXPECT_DEATH(Tiny(256), "check failed");
}

}  // namespace
}  // namespace ferry
