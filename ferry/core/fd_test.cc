// Tests of descriptor ownership and errno codes.
#include "ferry/core/fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <utility>

namespace ferry {
namespace {

bool IsOpen(int fd) { return ::fcntl(fd, F_GETFD) != -1; }

bool HasInput(int fd) {
  pollfd poll_fd{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&poll_fd, 1, 0) == 1;
}

UniqueFd MustMakeEventFd() {
  auto fd = MakeEventFd();
  EXPECT_TRUE(fd);
  return *std::move(fd);
}

TEST(UniqueFd, ClosesItsDescriptorOnce) {
  int raw = -1;
  {
    const UniqueFd fd = MustMakeEventFd();
    raw = fd.get();
    EXPECT_TRUE(IsOpen(raw));
  }
  EXPECT_FALSE(IsOpen(raw));
}

TEST(UniqueFd, MovesLeaveTheSourceInvalid) {
  UniqueFd a = MustMakeEventFd();
  const int raw = a.get();
  UniqueFd b = std::move(a);
  EXPECT_FALSE(a);  // NOLINT: the moved-from state is what is tested
  EXPECT_EQ(a.get(), FdTraits::kInvalid);
  EXPECT_EQ(b.get(), raw);
  UniqueFd c = MustMakeEventFd();
  const int replaced = c.get();
  c = std::move(b);
  EXPECT_EQ(c.get(), raw);
  EXPECT_FALSE(IsOpen(replaced));
  EXPECT_TRUE(IsOpen(raw));
}

TEST(UniqueFd, SurvivesAssignmentToItself) {
  UniqueFd fd = MustMakeEventFd();
  UniqueFd& same = fd;
  const int raw = fd.get();
  fd = std::move(same);
  EXPECT_EQ(fd.get(), raw);
  EXPECT_TRUE(IsOpen(raw));
}

TEST(UniqueFd, ReleaseKeepsTheDescriptorOpen) {
  UniqueFd fd = MustMakeEventFd();
  const int raw = fd.release();
  EXPECT_FALSE(fd);
  EXPECT_TRUE(IsOpen(raw));
  UniqueFd(raw).reset();
  EXPECT_FALSE(IsOpen(raw));
}

TEST(EventFd, IsReadableFromASignalUntilItIsDrained) {
  const UniqueFd fd = MustMakeEventFd();
  EXPECT_FALSE(HasInput(fd.get()));
  SignalEventFd(fd.get());
  SignalEventFd(fd.get());
  EXPECT_TRUE(HasInput(fd.get()));
  DrainEventFd(fd.get());
  EXPECT_FALSE(HasInput(fd.get()));
  DrainEventFd(fd.get());
  EXPECT_FALSE(HasInput(fd.get()));
}

TEST(EventFd, StaysReadableWhenSignalledAtItsLargestCount) {
  const UniqueFd fd = MustMakeEventFd();
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max() - 1;
  ASSERT_EQ(::write(fd.get(), &most, sizeof most), static_cast<ssize_t>(sizeof most));
  SignalEventFd(fd.get());
  EXPECT_TRUE(HasInput(fd.get()));
}

TEST(EventFd, IsNotInheritedAndDoesNotBlock) {
  const UniqueFd fd = MustMakeEventFd();
  EXPECT_NE(::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_NE(::fcntl(fd.get(), F_GETFL) & O_NONBLOCK, 0);
}

TEST(ErrnoError, NamesWhatFailedAndWhy) {
  const Error error = ErrnoError("connect to 10.0.0.1 port 4010", ECONNREFUSED);
  EXPECT_EQ(error.message(), "connect to 10.0.0.1 port 4010: Connection refused (errno " +
                                 std::to_string(ECONNREFUSED) + ")");
}

TEST(ErrnoError, ChoosesTheCodeByWhatTheCallerCanDo) {
  const std::pair<int, Code> kCases[] = {
      {EACCES, Code::kRefused},         {EPERM, Code::kRefused},
      {ECONNREFUSED, Code::kPeerLost},  {ECONNRESET, Code::kPeerLost},
      {EPIPE, Code::kPeerLost},         {EHOSTUNREACH, Code::kPeerLost},
      {EMFILE, Code::kUnavailable},     {ENOMEM, Code::kUnavailable},
      {EADDRINUSE, Code::kUnavailable}, {ETIMEDOUT, Code::kTimedOut},
      {EINVAL, Code::kInvalidArgument},
  };
  for (const auto& [error_number, code] : kCases) {
    EXPECT_EQ(ErrnoError("x", error_number).code(), code) << error_number;
  }
}

}  // namespace
}  // namespace ferry
