// Tests of the background task thread.
#include "ferry/core/errands.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace ferry {
namespace {

TEST(ErrandsTest, AreRunInTheirOrderByAnotherThread) {
  std::vector<int> order;
  std::thread::id by;
  {
    Errands errands;
    for (int i = 0; i < 100; ++i) {
      EXPECT_TRUE(errands.Post([&order, i] { order.push_back(i); }));
    }
    EXPECT_TRUE(errands.Post([&by] { by = std::this_thread::get_id(); }));
  }
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
  EXPECT_NE(by, std::this_thread::get_id());
}

TEST(ErrandsTest, AreAllRunBeforeTheirEndAlsoWhatOnesOwnEndPosts) {
  struct PostsWhenItGoes {
    Errands* errands;
    bool* ran;
    ~PostsWhenItGoes() {
      EXPECT_TRUE(errands->Post([ran = ran] { *ran = true; }));
    }
  };
  bool ran = false;
  {
    Errands errands;
    auto last = std::make_shared<PostsWhenItGoes>(PostsWhenItGoes{&errands, &ran});
    EXPECT_TRUE(errands.Post([last = std::move(last)] {}));
  }
  EXPECT_TRUE(ran);
}

TEST(ErrandsTest, NeedNoThreadWhereThereAreNone) { const Errands none; }

}  // namespace
}  // namespace ferry
