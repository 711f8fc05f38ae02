// Tests of lines on a stderr that is full, closed, or somebody else's.
#include "ferry/core/stderr_line.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <string>

#include "ferry/core/check.h"
#include "ferry/core/deadline.h"
#include "ferry/core/fd.h"
#include "ferry/core/log.h"

namespace ferry {
namespace {

using testing::ExitedWithCode;

// Each test runs in a process of its own, with a stderr of its own, and ends by an exit code.
[[noreturn]] void Exit(bool good) { ::_exit(good ? 0 : 1); }
void Replace(int fd) { (void)::dup2(fd, STDERR_FILENO); }
// A line that blocks ends the process by SIGALRM.
void LimitTime() { (void)::alarm(20); }

struct Pipe {
  Pipe() { FERRY_CHECK(::pipe2(ends.data(), O_CLOEXEC) == 0); }
  std::array<int, 2> ends{};
};

// What can be read now.
std::string Drained(int fd) {
  std::string text;
  std::array<char, 4096> some{};
  pollfd readable{.fd = fd, .events = POLLIN, .revents = 0};
  while (::poll(&readable, 1, 0) == 1 && (readable.revents & POLLIN) != 0) {
    const ssize_t got = ::read(fd, some.data(), some.size());
    if (got <= 0) break;
    text.append(some.data(), static_cast<std::size_t>(got));
  }
  return text;
}

void WriteMany(int lines) {
  for (int i = 0; i < lines; ++i) WriteStderrLine(std::string(1000, 'x'), LineLimit::kNone);
}

bool ReportsLoss(const std::string& text) {
  return text.find(" log lines were lost: stderr was full or closed") != std::string::npos;
}

TEST(StderrLineDeathTest, AFullPipeLosesLinesAndALaterLineTellsHowMany) {
  const auto run = [] {
    LimitTime();
    const Pipe pipe;
    Replace(pipe.ends[1]);
    WriteMany(200);
    const std::string first = Drained(pipe.ends[0]);
    WriteStderrLine("again", LineLimit::kNone);
    const std::string later = Drained(pipe.ends[0]);
    const auto written = std::count(first.begin(), first.end(), '\n');
    const std::string lost = std::to_string(200 - written) + " log lines were lost";
    Exit(written > 0 && written < 200 && later.find(lost) != std::string::npos &&
         later.find("\nagain\n") != std::string::npos);
  };
  EXPECT_EXIT(run(), ExitedWithCode(0), "");
}

TEST(StderrLineDeathTest, ATerminalWhoseReaderHasStoppedLosesLines) {
  const auto run = [] {
    LimitTime();
    const int reader = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    std::array<char, 64> name{};
    if (reader < 0 || ::grantpt(reader) != 0 || ::unlockpt(reader) != 0 ||
        ::ptsname_r(reader, name.data(), name.size()) != 0) {
      Exit(false);
    }
    Replace(::open(name.data(), O_RDWR | O_NOCTTY));
    WriteMany(1000);
    for (int i = 0; i < 1000 && !Drained(reader).empty(); ++i) {
    }
    WriteStderrLine("again", LineLimit::kNone);
    Exit(ReportsLoss(Drained(reader)));
  };
  EXPECT_EXIT(run(), ExitedWithCode(0), "");
}

TEST(StderrLineDeathTest, AUnixSocketThatNobodyReadsLosesLines) {
  const auto run = [] {
    LimitTime();
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) != 0) Exit(false);
    Replace(ends[1]);
    WriteMany(2000);
    const bool some = Drained(ends[0]).size() > 10000;
    WriteStderrLine("again", LineLimit::kNone);
    Exit(some && ReportsLoss(Drained(ends[0])));
  };
  EXPECT_EXIT(run(), ExitedWithCode(0), "");
}

TEST(StderrLineDeathTest, APipeWithoutAReaderDoesNotEndTheProcess) {
  const auto run = [] {
    LimitTime();
    (void)std::signal(SIGPIPE, SIG_DFL);
    const Pipe broken;
    Replace(broken.ends[1]);
    (void)::close(broken.ends[0]);
    WriteStderrLine("lost", LineLimit::kNone);
    Log(LogLevel::kError, "test", "lost");
    const Pipe pipe;
    Replace(pipe.ends[1]);
    WriteStderrLine("again", LineLimit::kNone);
    Exit(Drained(pipe.ends[0]).find(" 2 log lines were lost") != std::string::npos);
  };
  EXPECT_EXIT(run(), ExitedWithCode(0), "");
}

// `ulimit -f` and a stderr of that length; Python ignores the signal, other programs do not.
TEST(StderrLineDeathTest, AFileAtItsLimitLosesLines) {
  const auto run = [] {
    (void)std::signal(SIGXFSZ, SIG_DFL);
    const int file = ::memfd_create("stderr", MFD_CLOEXEC);
    Replace(file);
    const rlimit limit{.rlim_cur = 4096, .rlim_max = RLIM_INFINITY};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) Exit(false);
    WriteMany(100);
    Log(LogLevel::kError, "test", "lost");
    struct stat about {};
    if (::fstat(file, &about) != 0 || about.st_size != 4096) Exit(false);
    const Pipe pipe;
    Replace(pipe.ends[1]);
    WriteStderrLine("again", LineLimit::kNone);
    Exit(ReportsLoss(Drained(pipe.ends[0])));
  };
  EXPECT_EXIT(run(), ExitedWithCode(0), "");
}

// `stty tostop`, which stops a process of the background that writes to its terminal.
TEST(StderrLineDeathTest, ATerminalThatStopsTheBackgroundStopsNobody) {
  const auto run = [] {
    LimitTime();
    const int reader = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    std::array<char, 64> name{};
    if (reader < 0 || ::grantpt(reader) != 0 || ::unlockpt(reader) != 0 ||
        ::ptsname_r(reader, name.data(), name.size()) != 0 || ::setsid() < 0) {
      Exit(false);
    }
    Replace(::open(name.data(), O_RDWR));  // also makes it the session's terminal
    termios modes{};
    if (::tcgetattr(STDERR_FILENO, &modes) != 0) Exit(false);
    modes.c_lflag |= TOSTOP;
    if (::tcsetattr(STDERR_FILENO, TCSANOW, &modes) != 0) Exit(false);
    const pid_t background = ::fork();
    if (background == 0) {
      // The group is not an orphaned one, in which the kernel would refuse the write instead.
      (void)::setpgid(0, 0);
      WriteStderrLine("a line", LineLimit::kNone);
      ::_exit(0);
    }
    int status = 0;
    const bool ended = ::waitpid(background, &status, WUNTRACED) == background;
    if (ended && WIFSTOPPED(status)) (void)::kill(background, SIGKILL);
    Exit(ended && WIFEXITED(status) && Drained(reader).find("a line") != std::string::npos);
  };
  EXPECT_EXIT(run(), ExitedWithCode(0), "");
}

TEST(StderrLineDeathTest, AClosedStderrLosesLines) {
  const auto run = [] {
    const Pipe pipe;
    (void)::close(STDERR_FILENO);
    WriteStderrLine("lost", LineLimit::kNone);
    Replace(pipe.ends[1]);
    WriteStderrLine("again", LineLimit::kNone);
    Exit(ReportsLoss(Drained(pipe.ends[0])));
  };
  EXPECT_EXIT(run(), ExitedWithCode(0), "");
}

TEST(StderrLineDeathTest, AnInternetSocketThatHasTheNumberOfStderrGetsNoLine) {
  const auto run = [] {
    const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* const raw = reinterpret_cast<sockaddr*>(&address);
    const int client = ::socket(AF_INET, SOCK_STREAM, 0);
    if (::bind(listener, raw, length) != 0 || ::listen(listener, 1) != 0 ||
        ::getsockname(listener, raw, &length) != 0 || ::connect(client, raw, length) != 0) {
      Exit(false);
    }
    const int server = ::accept(listener, nullptr, nullptr);
    Replace(client);
    WriteStderrLine("a line", LineLimit::kNone);
    Log(LogLevel::kError, "test", "a line");
    internal::WriteStderr("a line\n");
    // The stream that the peer reads has what is sent on purpose, and nothing before it.
    if (::send(client, "x", 1, 0) != 1) Exit(false);
    std::array<char, 64> got{};
    Exit(::recv(server, got.data(), got.size(), 0) == 1 && got[0] == 'x');
  };
  EXPECT_EXIT(run(), ExitedWithCode(0), "");
}

// The test's process begins anew without stderr, as only that is what the library remembers.
TEST(StderrLineDeathTest, AFileOfAProcessThatBeganWithoutStderrGetsNoLine) {
  constexpr const char* kBegan = "STDERR_LINE_TEST_BEGAN_WITHOUT_STDERR";
  constexpr int kEmpty = 7;
  if (std::getenv(kBegan) != nullptr) {
    Replace(::memfd_create("file", 0));
    WriteStderrLine("a line", LineLimit::kNone);
    Log(LogLevel::kError, "test", "a line");
    struct stat about {};
    ::_exit(::fstat(STDERR_FILENO, &about) == 0 && about.st_size == 0 ? kEmpty : 1);
  }
  const auto run = [&] {
    (void)::setenv(kBegan, "1", 1);
    (void)::unsetenv("GTEST_TOTAL_SHARDS");
    (void)::dup2(::open("/dev/null", O_WRONLY), STDOUT_FILENO);
    (void)::close(STDERR_FILENO);
    const std::string filter = std::string("--gtest_filter=*.") +
                               testing::UnitTest::GetInstance()->current_test_info()->name();
    (void)::execl("/proc/self/exe", "test", filter.c_str(), nullptr);
    Exit(false);
  };
  EXPECT_EXIT(run(), ExitedWithCode(kEmpty), "");
}

TEST(StderrLineDeathTest, DescriptorsOfOursDoNotGetTheNumbersOfStandardStreams) {
  const auto run = [] {
    for (const int standard : {0, 1, 2}) (void)::close(standard);
    const UniqueFd socket = ClosedInChildren(UniqueFd(::socket(AF_INET, SOCK_STREAM, 0)));
    const auto event = MakeEventFd();
    Exit(socket.get() > 2 && event && event->get() > 2 && ::fcntl(0, F_GETFD) < 0 &&
         ::fcntl(2, F_GETFD) < 0);
  };
  EXPECT_EXIT(run(), ExitedWithCode(0), "");
}

TEST(StderrLineDeathTest, AFailedCheckAbortsAlthoughStderrIsFull) {
  const auto run = [] {
    LimitTime();
    const Pipe pipe;
    Replace(pipe.ends[1]);
    WriteMany(200);
    FERRY_CHECK(1 > 2);
  };
  EXPECT_EXIT(run(), testing::KilledBySignal(SIGABRT), "");
}

TEST(StderrLine, ControlCharactersAreEscaped) {
  testing::internal::CaptureStderr();
  WriteStderrLine("agent x\nE0101 forged\x1b[2J", LineLimit::kNone);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "agent x\\x0aE0101 forged\\x1b[2J\n");
}

TEST(StderrLineDeathTest, OneHundredLinesOfOthersAreWrittenInASecond) {
  const auto run = [] {
    const Pipe pipe;
    Replace(pipe.ends[1]);
    const auto begin = Clock::now();
    for (int i = 0; i < 150; ++i) WriteStderrLine("a peer's", LineLimit::kPerSecond);
    for (int i = 0; i < 150; ++i) Log(LogLevel::kWarn, "test", "a peer's");
    const auto begun = (Clock::now() - begin) / std::chrono::seconds(1) + 1;
    const std::string text = Drained(pipe.ends[0]);
    const auto lines = std::count(text.begin(), text.end(), '\n');
    Exit(lines >= kMaxLinesPerSecond && lines <= (kMaxLinesPerSecond + 1) * begun);
  };
  EXPECT_EXIT(run(), ExitedWithCode(0), "");
}

}  // namespace
}  // namespace ferry
