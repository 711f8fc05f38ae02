// Implements signal handling, process facts and the server child process.

#include "tools/support/process.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <limits>
#include <utility>

#include "tools/support/json.h"

namespace ferry::tools {
namespace {

constexpr auto kEndingWait = std::chrono::seconds(5);

std::atomic<int> interrupted_by{0};
static_assert(std::atomic<int>::is_always_lock_free, "set in a signal handler");

void OnSignal(int signal) {
  int none = 0;
  // The first signal is kept. Relaxed: nothing else is published with it.
  (void)interrupted_by.compare_exchange_strong(none, signal, std::memory_order_relaxed);
}

double SecondsOf(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

// Between fork and exec: system calls only.
[[noreturn]] void BecomeServer(char* const* arguments, int output, pid_t parent) {
  // The server dies with this process, however that ends. The parent is compared, since it may have
  // died before the call.
  const bool tied = ::prctl(PR_SET_PDEATHSIG, SIGKILL) == 0;
  if (!tied || ::getppid() != parent || ::dup2(output, STDOUT_FILENO) < 0) ::_exit(127);
  ::execv("/proc/self/exe", arguments);
  ::_exit(127);
}

// Whether something can be read, or nothing ever will be again.
bool WaitReadable(int fd, Deadline deadline) {
  pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
  for (;;) {
    const int ready = ::poll(&entry, 1, deadline.PollMillis());
    if (ready > 0) return true;
    if (ready == 0 && deadline.expired()) return false;
    if (ready < 0 && (errno != EINTR || Interrupted())) return false;
  }
}

}  // namespace

void CatchSignals() {
  struct sigaction action {};
  action.sa_handler = OnSignal;
  // The second signal kills at once: a way out of an orderly end that takes too long.
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  (void)::sigaction(SIGINT, &action, nullptr);
  (void)::sigaction(SIGTERM, &action, nullptr);
  (void)::signal(SIGPIPE, SIG_IGN);
  (void)::signal(SIGXFSZ, SIG_IGN);  // a write beyond `ulimit -f` is EFBIG then
}

bool Interrupted() noexcept { return InterruptSignal() != 0; }

int InterruptSignal() noexcept { return interrupted_by.load(std::memory_order_relaxed); }

Error InterruptedError() {
  return Error(Code::kCancelled, InterruptSignal() == SIGTERM ? "interrupted by SIGTERM"
                                                              : "interrupted by SIGINT (Ctrl-C)");
}

double CpuSeconds() noexcept {
  rusage usage{};
  (void)::getrusage(RUSAGE_SELF, &usage);
  return SecondsOf(usage.ru_utime) + SecondsOf(usage.ru_stime);
}

std::uint64_t AvailableMemory() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  std::uint64_t kilobytes = 0;
  while (file >> name >> kilobytes) {
    if (name == "MemAvailable:") return kilobytes * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0;
}

Result<ServerProcess> ServerProcess::Start(const std::vector<std::string>& arguments,
                                           Deadline deadline) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return ErrnoError("pipe2", errno);
  UniqueFd output(ends[0]);
  UniqueFd input(ends[1]);
  std::vector<std::string> texts{"ferry"};
  texts.insert(texts.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);

  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return ErrnoError("fork", errno);
  if (pid == 0) BecomeServer(pointers.data(), input.get(), parent);
  input.reset();  // so that its end shows when the process is gone
  ServerProcess server(pid, std::move(output));
  FERRY_TRY(server.ReadAnnouncement(deadline));
  return server;
}

Status ServerProcess::ReadAnnouncement(Deadline deadline) {
  std::string line;
  while (line.find('\n') == std::string::npos) {
    std::array<char, 512> part{};
    if (!WaitReadable(output_.get(), deadline)) {
      if (Interrupted()) return InterruptedError();
      return Error(Code::kTimedOut, "the server process did not start to listen in time");
    }
    const ssize_t got = ::read(output_.get(), part.data(), part.size());
    if (got <= 0) return Error(Code::kUnavailable, "the server process ended before it listened");
    line.append(part.data(), static_cast<std::size_t>(got));
  }
  FERRY_TRY_ASSIGN(const Json announcement, ParseJson(line));
  FERRY_TRY(ErrorFromJson(announcement));
  FERRY_TRY_ASSIGN(const std::uint64_t port, BoundedField(announcement, "port", 1, 65535));
  port_ = static_cast<std::uint16_t>(port);
  return Ok();
}

ServerProcess::ServerProcess(ServerProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), output_(std::move(other.output_)), port_(other.port_) {}

ServerProcess::~ServerProcess() {
  if (pid_ < 0) return;
  (void)::kill(pid_, SIGTERM);
  const Deadline deadline = Deadline::After(kEndingWait);
  std::array<char, 512> rest{};
  bool gone = false;
  // The end of its output is its end; a full pipe must not keep it from ending.
  while (!gone && WaitReadable(output_.get(), deadline)) {
    gone = ::read(output_.get(), rest.data(), rest.size()) <= 0;
  }
  if (!gone) (void)::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace ferry::tools
