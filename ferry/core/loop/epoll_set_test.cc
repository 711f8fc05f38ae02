// Tests of a loop's descriptors and of its wake-up.
#include "ferry/core/loop/epoll_set.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <utility>

namespace ferry {
namespace {

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
  EXPECT_EQ(Handle(set_.Look()), 0);
  SignalEventFd(first_.get());
  EXPECT_EQ(Handle(set_.Look()), 1);
  EXPECT_EQ(handler_.calls, 1);
  EXPECT_EQ(Handle(set_.Look()), 0);
}

TEST_F(EpollSetTest, RefusesASecondHandlerForADescriptor) {
  ASSERT_TRUE(set_.Watch(first_.get(), EPOLLIN, &handler_));
  EXPECT_FALSE(set_.Watch(first_.get(), EPOLLIN, &other_));
  SignalEventFd(first_.get());
  EXPECT_EQ(Handle(set_.Look()), 1);
  EXPECT_EQ(handler_.calls, 1);
}

TEST_F(EpollSetTest, DropsAnEventWhoseHandlerWasReplacedSinceItWasFetched) {
  ASSERT_TRUE(set_.Watch(first_.get(), EPOLLIN, &handler_));
  SignalEventFd(first_.get());
  const int count = set_.Look();
  EXPECT_EQ(count, 1);
  set_.Unwatch(first_.get(), &handler_);
  ASSERT_TRUE(set_.Watch(first_.get(), EPOLLIN, &other_));
  EXPECT_EQ(Handle(count), 0);
  // The new handler gets an event of its own.
  EXPECT_EQ(Handle(set_.Look()), 1);
  EXPECT_EQ(handler_.calls, 0);
  EXPECT_EQ(other_.calls, 1);
}

TEST_F(EpollSetTest, IgnoresARemovalByWhoDoesNotWatch) {
  ASSERT_TRUE(set_.Watch(first_.get(), EPOLLIN, &handler_));
  set_.Unwatch(first_.get(), &other_);
  set_.Unwatch(second_.get(), &other_);
  SignalEventFd(first_.get());
  EXPECT_EQ(Handle(set_.Look()), 1);
}

TEST_F(EpollSetTest, LetsAHandlerRemoveTheOtherOneOfItsBatch) {
  ASSERT_TRUE(set_.Watch(first_.get(), EPOLLIN, &handler_));
  ASSERT_TRUE(set_.Watch(second_.get(), EPOLLIN, &other_));
  handler_.then = [&] { set_.Unwatch(second_.get(), &other_); };
  other_.then = [&] { set_.Unwatch(first_.get(), &handler_); };
  SignalEventFd(first_.get());
  SignalEventFd(second_.get());
  EXPECT_EQ(Handle(set_.Look()), 1);
  EXPECT_EQ(handler_.calls + other_.calls, 1);
}

TEST_F(EpollSetTest, WakesOnlyAThreadThatHasAnnouncedItsSleep) {
  set_.Wake();
  EXPECT_EQ(set_.Look(), 0);
  set_.AnnounceSleep();
  set_.Wake();
  const int count = set_.Wait(Deadline::After(kTimeout));
  EXPECT_EQ(count, 1);
  EXPECT_EQ(Handle(count), 0);
  // The announcement holds for one wait.
  set_.Wake();
  EXPECT_EQ(set_.Look(), 0);
}

TEST_F(EpollSetTest, IsInterruptedAlsoWithoutAnAnnouncement) {
  set_.Interrupt();
  set_.Interrupt();
  const int count = set_.Wait(Deadline::After(kTimeout));
  EXPECT_EQ(count, 1);
  EXPECT_EQ(Handle(count), 0);
  EXPECT_EQ(set_.Look(), 0);
}

// Returns true once a wait of 50 us takes less than a millisecond. Tries for kTimeout, because a
// busy machine delays single waits.
bool WaitsBriefly(EpollSet* set) {
  const Deadline timeout = Deadline::After(kTimeout);
  while (!timeout.expired()) {
    const auto begin = Clock::now();
    const Deadline wake = Deadline::At(begin + std::chrono::microseconds(50));
    if (set->Wait(wake) != 0 || !wake.expired()) return false;
    if (Clock::now() - begin < std::chrono::microseconds(900)) return true;
  }
  return false;
}

TEST_F(EpollSetTest, WaitsForLessThanAMillisecond) { EXPECT_TRUE(WaitsBriefly(&set_)); }

// Denies epoll_pwait2() to this process for good.
bool Deny(int error) {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_pwait2, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {.len = std::size(code), .filter = code};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Runs in a child of the test, where the descriptors of the test are closed.
bool WaitsBrieflyWithoutTheCall(int error) {
  EpollSet set;
  CallCounter handler;
  auto event = MakeEventFd();
  if (!Deny(error) || !set.Open() || !event || !WaitsBriefly(&set)) return false;
  SignalEventFd(event->get());
  return set.Watch(event->get(), EPOLLIN, &handler) && set.Wait(Deadline::After(kTimeout)) == 1;
}

// Older kernels and filters of system calls deny epoll_pwait2(), filters by an error of their
// choice. The child ends by _Exit(), because a leak sanitizer cannot run under such a filter.
TEST(EpollSet, WaitsAsBrieflyWithoutTheCallForThat) {
  for (const int error : {ENOSYS, EPERM, EACCES}) {
    EXPECT_EXIT(std::_Exit(WaitsBrieflyWithoutTheCall(error) ? 0 : 1), ::testing::ExitedWithCode(0),
                "")
        << error;
  }
}

}  // namespace
}  // namespace ferry
