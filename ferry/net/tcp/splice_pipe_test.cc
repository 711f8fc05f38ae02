// Tests of zero-copy sends.
#include "ferry/net/tcp/splice_pipe.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <utility>
#include <vector>

namespace ferry::net::tcp {
namespace {

constexpr int kWaitMillis = 10000;

// The two ends of a TCP connection.
std::pair<UniqueFd, UniqueFd> Connected() {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(::bind(listener.get(), any, size), 0);
  EXPECT_EQ(::listen(listener.get(), 1), 0);
  EXPECT_EQ(::getsockname(listener.get(), any, &size), 0);
  UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(client.get(), any, size), 0);
  UniqueFd server(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  return {std::move(client), std::move(server)};
}

// Splices `memory` into the socket; returns 0 or the errno of the failure.
int Give(SplicePipe* pipe, std::vector<std::byte>* memory, int socket) {
  const iovec piece{memory->data(), memory->size()};
  if (pipe->held() == 0 && pipe->Fill(std::span(&piece, 1)) < 0) return errno;
  return pipe->Drain(socket) < 0 ? errno : 0;
}

// Regression: splice(2) raised SIGPIPE here, which by default ends the application.
TEST(SplicePipe, ReportsAPeerThatHasGoneByAnErrorAndNotByASignal) {
  ASSERT_NE(::signal(SIGPIPE, SIG_DFL), SIG_ERR);
  auto pipe = SplicePipe::Create();
  if (!pipe) GTEST_SKIP() << "no large pipes here";
  std::vector<std::byte> memory(16384);
  auto [ours, theirs] = Connected();
  theirs.reset();
  // The peer answers the first bytes with a reset.
  EXPECT_EQ(Give(&*pipe, &memory, ours.get()), 0);
  pollfd watched{ours.get(), 0, 0};
  ASSERT_EQ(::poll(&watched, 1, kWaitMillis), 1);

  EXPECT_EQ(Give(&*pipe, &memory, ours.get()), EPIPE);
  EXPECT_EQ(Give(&*pipe, &memory, ours.get()), EPIPE);
  sigset_t blocked;
  ASSERT_EQ(::pthread_sigmask(SIG_SETMASK, nullptr, &blocked), 0);
  EXPECT_EQ(sigismember(&blocked, SIGPIPE), 0) << "the thread's mask is as it was";
}

TEST(SplicePipe, LeavesASignalAloneThatWaitsForTheApplication) {
  auto pipe = SplicePipe::Create();
  if (!pipe) GTEST_SKIP() << "no large pipes here";
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, SIGPIPE);
  ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, &only, nullptr), 0);
  ASSERT_EQ(::raise(SIGPIPE), 0);
  std::vector<std::byte> memory(16384);
  auto [ours, theirs] = Connected();
  theirs.reset();
  EXPECT_EQ(Give(&*pipe, &memory, ours.get()), 0);
  pollfd watched{ours.get(), 0, 0};
  ASSERT_EQ(::poll(&watched, 1, kWaitMillis), 1);
  EXPECT_EQ(Give(&*pipe, &memory, ours.get()), EPIPE);
  const timespec now{};
  EXPECT_EQ(::sigtimedwait(&only, nullptr, &now), SIGPIPE);
  EXPECT_EQ(::pthread_sigmask(SIG_UNBLOCK, &only, nullptr), 0);
}

}  // namespace
}  // namespace ferry::net::tcp
