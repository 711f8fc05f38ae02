// Tests of a loop's queue of tasks.
#include "ferry/core/loop/task_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

namespace ferry {
namespace {

using testing::ElementsAre;

class TaskQueueTest : public testing::Test {
 protected:
  void Push(int number) {
    tasks_.Push([this, number] { ran_.push_back(number); });
  }

  TaskQueue tasks_;
  std::vector<int> ran_;
};

TEST_F(TaskQueueTest, RunsTasksInOrderAndOnce) {
  EXPECT_TRUE(tasks_.empty());
  Push(1);
  Push(2);
  EXPECT_TRUE(tasks_.has_new());
  EXPECT_TRUE(tasks_.RunSome(8));
  EXPECT_THAT(ran_, ElementsAre(1, 2));
  EXPECT_TRUE(tasks_.empty());
  EXPECT_FALSE(tasks_.RunSome(8));
}

TEST_F(TaskQueueTest, RunsAtMostSoManyTasksInACallAndTheRestBeforeNewOnes) {
  for (int i = 0; i < 5; ++i) Push(i);
  EXPECT_TRUE(tasks_.RunSome(2));
  EXPECT_THAT(ran_, ElementsAre(0, 1));
  EXPECT_FALSE(tasks_.has_new());
  EXPECT_FALSE(tasks_.empty());
  Push(5);
  EXPECT_TRUE(tasks_.RunSome(8));
  EXPECT_THAT(ran_, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_TRUE(tasks_.RunSome(8));
  EXPECT_THAT(ran_, ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST_F(TaskQueueTest, LeavesATaskThatATaskPushesToTheNextCall) {
  tasks_.Push([this] { Push(1); });
  EXPECT_TRUE(tasks_.RunSome(8));
  EXPECT_THAT(ran_, ElementsAre());
  EXPECT_TRUE(tasks_.has_new());
  EXPECT_TRUE(tasks_.RunSome(8));
  EXPECT_THAT(ran_, ElementsAre(1));
}

// Pushes again when it is destroyed without having run.
class PushesAgain {
 public:
  PushesAgain(TaskQueue* tasks, int* destroyed) : tasks_(tasks), destroyed_(destroyed) {}
  PushesAgain(PushesAgain&& other) noexcept
      : tasks_(std::exchange(other.tasks_, nullptr)), destroyed_(other.destroyed_) {}
  PushesAgain& operator=(PushesAgain&&) = delete;
  ~PushesAgain() {
    if (tasks_ == nullptr) return;
    ++*destroyed_;
    tasks_->Push([] { ADD_FAILURE(); });
  }
  void operator()() { ADD_FAILURE(); }

 private:
  TaskQueue* tasks_;
  int* destroyed_;
};

TEST_F(TaskQueueTest, DestroysTasksWhenItClosesAlsoIfTheyPushAgain) {
  int destroyed = 0;
  Push(1);
  tasks_.Push(PushesAgain(&tasks_, &destroyed));
  EXPECT_TRUE(tasks_.RunSome(1));
  tasks_.Push(PushesAgain(&tasks_, &destroyed));
  tasks_.Close();
  EXPECT_EQ(destroyed, 2);
  EXPECT_FALSE(tasks_.RunSome(8));
  const auto alive = std::make_shared<int>(0);  // with the task that comes too late
  tasks_.Push([alive] { ADD_FAILURE(); });
  EXPECT_EQ(alive.use_count(), 1);
  EXPECT_FALSE(tasks_.RunSome(8));
}

}  // namespace
}  // namespace ferry
