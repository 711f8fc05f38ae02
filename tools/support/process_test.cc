// Tests of signals, facts about the process, and of a server in a child process.

#include "tools/support/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <fstream>
#include <limits>
#include <string>

#include "ferry/core/testing/forked_child.h"
#include "tools/support/mapping.h"

namespace ferry::tools {
namespace {

using ::testing::HasSubstr;

// The children run this test program in a role of testing/command_line.h.
Result<ServerProcess> StartRole(const std::vector<std::string>& role) {
  return ServerProcess::Start(role, Deadline::After(std::chrono::seconds(60)));
}

// ---- signals ------------------------------------------------------------------------------------

TEST(Signals, TheFirstOneOnlySetsAFlagAndTheSecondOneKills) {
  FERRY_SKIP_FORK_TEST();
  struct {
    int signal;
    const char* says;
  } const kCases[] = {{SIGINT, "interrupted by SIGINT (Ctrl-C)"},
                      {SIGTERM, "interrupted by SIGTERM"}};
  for (const auto& one : kCases) {
    const int signal = one.signal;
    const std::string says = one.says;
    const int status = StatusOfChild([&] {
      CatchSignals();
      if (Interrupted() || InterruptSignal() != 0) return 1;
      (void)::raise(signal);
      if (!Interrupted() || InterruptSignal() != signal) return 2;
      if (InterruptedError().message() != says) return 3;
      return InterruptedError().code() == Code::kCancelled ? 0 : 4;
    });
    EXPECT_EQ(status, 0) << says;
    EXPECT_EQ(StatusOfChild([&] {
                CatchSignals();
                (void)::raise(signal);
                (void)::raise(signal);
                return 0;
              }),
              -1)
        << "killed";
  }
}

TEST(Signals, TheFirstOfTwoKindsIsRemembered) {
  FERRY_SKIP_FORK_TEST();
  EXPECT_EQ(StatusOfChild([] {
              CatchSignals();
              (void)::raise(SIGTERM);
              (void)::raise(SIGINT);
              return InterruptSignal() == SIGTERM ? 0 : 1;
            }),
            0);
}

TEST(Signals, AClosedPipeIsAnErrorOfTheWriteOnly) {
  FERRY_SKIP_FORK_TEST();
  EXPECT_EQ(StatusOfChild([] {
              CatchSignals();
              int ends[2];
              if (::pipe(ends) != 0) return 1;
              (void)::close(ends[0]);
              return ::write(ends[1], "x", 1) < 0 && errno == EPIPE && !Interrupted() ? 0 : 2;
            }),
            0);
}

// ---- facts --------------------------------------------------------------------------------------

TEST(ProcessFacts, CpuTimeGrowsWithWork) {
  const double before = CpuSeconds();
  EXPECT_GE(before, 0);
  const Deadline limit = Deadline::After(std::chrono::seconds(60));
  while (CpuSeconds() <= before && !limit.expired()) {
  }
  EXPECT_GT(CpuSeconds(), before);
}

TEST(ProcessFacts, AvailableMemoryIsLessThanTheMachineHas) {
  std::ifstream file("/proc/meminfo");
  std::string name;
  std::uint64_t total_kilobytes = 0;
  ASSERT_TRUE(file >> name >> total_kilobytes);
  ASSERT_EQ(name, "MemTotal:");
  EXPECT_GT(AvailableMemory(), 0U);
  EXPECT_LE(AvailableMemory(), total_kilobytes * 1024);
}

TEST(HostBuffers, MoreThanTheMachineHasIsASentence) {
  const auto buffer = HostBuffer::Allocate(std::numeric_limits<std::uint64_t>::max() / 2);
  ASSERT_FALSE(buffer);
  EXPECT_EQ(buffer.error().code(), Code::kUnavailable);
  EXPECT_THAT(buffer.error().message(), HasSubstr("MiB of memory are available"));
}

TEST(HostBuffers, AreWritableToTheLastByteAndEmptyByDefault) {
  EXPECT_TRUE(HostBuffer().bytes().empty());
  const auto buffer = HostBuffer::Allocate(4097);
  ASSERT_TRUE(buffer);
  ASSERT_EQ(buffer->bytes().size(), 4097U);
  EXPECT_EQ(buffer->bytes().back(), std::byte{0x5A}) << "resident, with contents";
  buffer->bytes().back() = std::byte{1};
}

// ---- servers ------------------------------------------------------------------------------------

TEST(ServerProcesses, ArePortsThatTheyAnnounce) {
  for (const int port : {1, 7471, 65535}) {
    const auto server = StartRole({"announce", R"({"port": )" + std::to_string(port) + "}"});
    ASSERT_TRUE(server) << server.error().ToString();
    EXPECT_EQ(server->port(), port);
  }
}

TEST(ServerProcesses, EndWithTheObjectThatHasThem) {
  auto first = StartRole({"announce", R"({"port": 1})"});
  ASSERT_TRUE(first);
  {
    const ServerProcess moved = *std::move(first);
    EXPECT_EQ(moved.port(), 1);
  }
  // The object that it was moved from has none to end, and no child is left to wait for.
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
}

TEST(ServerProcesses, AnAnnouncementThatIsNoneIsAnError) {
  struct {
    const char* text;
    Code code;
    const char* about;
  } const kCases[] = {
      {"listening on 127.0.0.1:7471", Code::kCorrupt, "no JSON object"},
      {"", Code::kCorrupt, "no JSON object"},
      {R"({"listening": "127.0.0.1:7471"})", Code::kCorrupt, "\"port\""},
      {R"({"port": "7471"})", Code::kCorrupt, "\"port\""},
      {R"({"port": 65536})", Code::kInvalidArgument, "port 65536 is out of range"},
      {R"({"port": 0})", Code::kInvalidArgument, "port 0 is out of range"},
      {R"({"error": {"code": "Unavailable", "message": "port 1 is taken"}})", Code::kUnavailable,
       "the server says: port 1 is taken"},
  };
  for (const auto& [text, code, about] : kCases) {
    const auto server = StartRole({"announce", text});
    ASSERT_FALSE(server) << text;
    EXPECT_EQ(server.error().code(), code) << text;
    EXPECT_THAT(server.error().message(), HasSubstr(about));
  }
}

TEST(ServerProcesses, OneThatEndsBeforeItListensIsUnavailable) {
  const auto server = StartRole({"leave"});
  ASSERT_FALSE(server);
  EXPECT_EQ(server.error().code(), Code::kUnavailable);
  EXPECT_EQ(server.error().message(), "the server process ended before it listened");
}

TEST(ServerProcesses, OneThatAnnouncesNothingTimesOutAndIsEnded) {
  const auto server = ServerProcess::Start({"wait"}, Deadline::After(milliseconds(20)));
  ASSERT_FALSE(server);
  EXPECT_EQ(server.error().code(), Code::kTimedOut);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
}

}  // namespace
}  // namespace ferry::tools
