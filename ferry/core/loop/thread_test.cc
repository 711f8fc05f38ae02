// Tests of the error for a thread that cannot be started.
#include "ferry/core/loop/thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(StartThreadTest, RunsWhatItIsGiven) {
  bool ran = false;
  auto thread = StartThread("a test", [&ran] { ran = true; });
  ASSERT_TRUE(thread);
  thread->join();
  EXPECT_TRUE(ran);
}

// Throws as the constructor of std::thread does when the system has no more threads.
struct NoThread {
  template <class Run>
  explicit NoThread(Run /*run*/) {
    throw std::system_error(EAGAIN, std::generic_category());
  }
};

TEST(StartThreadTest, WithoutAnyLeftIsAnErrorWithTheCountAndTheLimits) {
  const auto thread = StartThread<NoThread>("a worker", [] {});
  ASSERT_FALSE(thread);
  EXPECT_EQ(thread.error().code(), Code::kUnavailable);
  EXPECT_THAT(thread.error().message(),
              AllOf(HasSubstr("a worker"), HasSubstr("Resource temporarily unavailable"),
                    HasSubstr("threads in this process"), HasSubstr("FERRY_WORKERS")));
}

}  // namespace
}  // namespace ferry
