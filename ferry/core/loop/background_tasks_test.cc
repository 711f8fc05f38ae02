// Tests of the background task thread.
#include "ferry/core/loop/background_tasks.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace ferry {
namespace {

TEST(BackgroundTasksTest, AreRunInTheirOrderByAnotherThread) {
  std::vector<int> order;
  std::thread::id by;
  {
    BackgroundTasks background_tasks;
    for (int i = 0; i < 100; ++i) {
      EXPECT_TRUE(background_tasks.Post([&order, i] { order.push_back(i); }));
    }
    EXPECT_TRUE(background_tasks.Post([&by] { by = std::this_thread::get_id(); }));
  }
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
  EXPECT_NE(by, std::this_thread::get_id());
}

TEST(BackgroundTasksTest, AreAllRunBeforeTheirEndAlsoWhatOnesOwnEndPosts) {
  struct PostsWhenItGoes {
    BackgroundTasks* background_tasks;
    bool* ran;
    ~PostsWhenItGoes() {
      EXPECT_TRUE(background_tasks->Post([ran = ran] { *ran = true; }));
    }
  };
  bool ran = false;
  {
    BackgroundTasks background_tasks;
    auto last = std::make_shared<PostsWhenItGoes>(PostsWhenItGoes{&background_tasks, &ran});
    EXPECT_TRUE(background_tasks.Post([last = std::move(last)] {}));
  }
  EXPECT_TRUE(ran);
}

TEST(BackgroundTasksTest, NeedNoThreadWhereThereAreNone) { const BackgroundTasks none; }

}  // namespace
}  // namespace ferry
