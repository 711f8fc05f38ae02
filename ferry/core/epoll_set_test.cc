// Tests of a loop's descriptors and of its wake-up.
#include "ferry/core/epoll_set.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <functional>
#include <utility>

namespace ferry {
namespace {

const Deadline kNoWait = Deadline::At({});
constexpr std::chrono::seconds kTimeout{30};

class CallCounter final : public EventLoop::Handler {
 public:
  void OnEvents(std::uint32_t /*events*/) override {
    ++calls;
    if (then) then();
  }
  int calls = 0;
  std::function<void()> then;
};

class EpollSetTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(set_.Open());
    for (UniqueFd* fd : {&first_, &second_}) {
      auto made = MakeEventFd();
      ASSERT_TRUE(made);
      *fd = *std::move(made);
    }
  }
  // Returns how often a handler was called.
  int Handle(int count) {
    int handled = 0;
    const bool any = set_.Handle(count, [&] { ++handled; });
    EXPECT_EQ(any, handled > 0);
    return handled;
  }

  EpollSet set_;
  UniqueFd first_;
  UniqueFd second_;
  CallCounter handler_;
  CallCounter other_;
};

TEST_F(EpollSetTest, ReportsEachEventOnceToItsHandler) {
  ASSERT_TRUE(set_.Watch(first_.get(), EPOLLIN, &handler_));
  EXPECT_EQ(Handle(set_.Wait(kNoWait)), 0);
  SignalEventFd(first_.get());
  EXPECT_EQ(Handle(set_.Wait(kNoWait)), 1);
  EXPECT_EQ(handler_.calls, 1);
  EXPECT_EQ(Handle(set_.Wait(kNoWait)), 0);
}

TEST_F(EpollSetTest, RefusesASecondHandlerForADescriptor) {
  ASSERT_TRUE(set_.Watch(first_.get(), EPOLLIN, &handler_));
  EXPECT_FALSE(set_.Watch(first_.get(), EPOLLIN, &other_));
  SignalEventFd(first_.get());
  EXPECT_EQ(Handle(set_.Wait(kNoWait)), 1);
  EXPECT_EQ(handler_.calls, 1);
}

TEST_F(EpollSetTest, DropsAnEventWhoseHandlerWasReplacedSinceItWasFetched) {
  ASSERT_TRUE(set_.Watch(first_.get(), EPOLLIN, &handler_));
  SignalEventFd(first_.get());
  const int count = set_.Wait(kNoWait);
  EXPECT_EQ(count, 1);
  set_.Unwatch(first_.get(), &handler_);
  ASSERT_TRUE(set_.Watch(first_.get(), EPOLLIN, &other_));
  EXPECT_EQ(Handle(count), 0);
  // The new handler gets an event of its own.
  EXPECT_EQ(Handle(set_.Wait(kNoWait)), 1);
  EXPECT_EQ(handler_.calls, 0);
  EXPECT_EQ(other_.calls, 1);
}

TEST_F(EpollSetTest, IgnoresARemovalByWhoDoesNotWatch) {
  ASSERT_TRUE(set_.Watch(first_.get(), EPOLLIN, &handler_));
  set_.Unwatch(first_.get(), &other_);
  set_.Unwatch(second_.get(), &other_);
  SignalEventFd(first_.get());
  EXPECT_EQ(Handle(set_.Wait(kNoWait)), 1);
}

TEST_F(EpollSetTest, LetsAHandlerRemoveTheOtherOneOfItsBatch) {
  ASSERT_TRUE(set_.Watch(first_.get(), EPOLLIN, &handler_));
  ASSERT_TRUE(set_.Watch(second_.get(), EPOLLIN, &other_));
  handler_.then = [&] { set_.Unwatch(second_.get(), &other_); };
  other_.then = [&] { set_.Unwatch(first_.get(), &handler_); };
  SignalEventFd(first_.get());
  SignalEventFd(second_.get());
  EXPECT_EQ(Handle(set_.Wait(kNoWait)), 1);
  EXPECT_EQ(handler_.calls + other_.calls, 1);
}

TEST_F(EpollSetTest, WakesOnlyAThreadThatHasAnnouncedItsSleep) {
  set_.Wake();
  EXPECT_EQ(set_.Wait(kNoWait), 0);
  set_.AnnounceSleep();
  set_.Wake();
  const int count = set_.Wait(Deadline::After(kTimeout));
  EXPECT_EQ(count, 1);
  EXPECT_EQ(Handle(count), 0);
  // The announcement holds for one wait.
  set_.Wake();
  EXPECT_EQ(set_.Wait(kNoWait), 0);
}

TEST_F(EpollSetTest, IsInterruptedAlsoWithoutAnAnnouncement) {
  set_.Interrupt();
  set_.Interrupt();
  const int count = set_.Wait(Deadline::After(kTimeout));
  EXPECT_EQ(count, 1);
  EXPECT_EQ(Handle(count), 0);
  EXPECT_EQ(set_.Wait(kNoWait), 0);
}

// A kernel before 5.11 cannot.
TEST_F(EpollSetTest, WaitsForLessThanAMillisecond) {
  const long known = ::syscall(SYS_epoll_pwait2, -1, nullptr, 0, nullptr, nullptr, 0);
  if (known < 0 && (errno == ENOSYS || errno == EPERM)) GTEST_SKIP() << "no epoll_pwait2 here";
  const Deadline timeout = Deadline::After(kTimeout);
  Clock::duration shortest = Clock::duration::max();
  // A busy machine may let any one wait take long.
  while (shortest >= std::chrono::microseconds(900) && !timeout.expired()) {
    const auto begin = Clock::now();
    const Deadline wake = Deadline::At(begin + std::chrono::microseconds(50));
    EXPECT_EQ(set_.Wait(wake), 0);
    EXPECT_TRUE(wake.expired());
    shortest = std::min(shortest, Clock::now() - begin);
  }
  EXPECT_LT(shortest, std::chrono::microseconds(900));
}

}  // namespace
}  // namespace ferry
