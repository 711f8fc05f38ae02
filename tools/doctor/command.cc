// Other programs, asked within a time.
#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <system_error>

#include "ferry/core/fd.h"
#include "tools/doctor/machine.h"

namespace ferry::tools {
namespace {

// Not PATH: a doctor run as root starts what the system has, and /usr/sbin is not in everybody's.
constexpr std::array kFolders = {"/usr/sbin/", "/usr/bin/", "/sbin/", "/bin/"};
constexpr std::size_t kMaxOutput = 16 << 20;

std::string FindProgram(const std::string& name) {
  for (const char* folder : kFolders) {
    std::string path = folder + name;
    if (::access(path.c_str(), X_OK) == 0) return path;
  }
  return "";
}

struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;
};

Result<Pipe> MakePipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return ErrnoError("pipe2", errno);
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// Kills the program where the caller gives up, so that none stays behind, and no zombie.
class Child {
 public:
  explicit Child(pid_t pid) : pid_(pid) {}
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (pid_ > 0) (void)Kill();
  }

  int Kill() {
    (void)::kill(pid_, SIGKILL);
    return Reap();
  }
  int Reap() {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t pid_;
};

// glibc 2.36 declares its wrapper for C only.
UniqueFd OpenProcess(pid_t pid) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

Result<pid_t> Spawn(const std::string& path, const std::vector<std::string>& arguments, int out,
                    int err) {
  std::vector<std::string> texts = arguments;
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  // A fixed environment: the output is parsed, so it must not be translated.
  std::array environment = {std::string("LC_ALL=C"), std::string("PATH=/usr/sbin:/usr/bin")};
  std::array<char*, 3> variables = {environment[0].data(), environment[1].data(), nullptr};
  posix_spawn_file_actions_t actions;
  (void)::posix_spawn_file_actions_init(&actions);
  (void)::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  (void)::posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  (void)::posix_spawn_file_actions_adddup2(&actions, err, STDERR_FILENO);
  pid_t pid = -1;
  const int rc =
      ::posix_spawn(&pid, path.c_str(), &actions, nullptr, pointers.data(), variables.data());
  (void)::posix_spawn_file_actions_destroy(&actions);
  if (rc != 0) return ErrnoError(fmt::format("starting {}", path), rc);
  return pid;
}

// One read; false at the end.
bool Append(int fd, std::string* text) {
  std::array<char, 16384> part{};
  const ssize_t got = ::read(fd, part.data(), part.size());
  if (got < 0) return errno == EINTR;
  text->append(part.data(), static_cast<std::size_t>(got));
  return got > 0;
}

// Both at once: a program that fills the pipe that is not read would never end.
Status Collect(int out, int err, Deadline deadline, CommandEnd* end) {
  std::array<pollfd, 2> entries{pollfd{.fd = out, .events = POLLIN, .revents = 0},
                                pollfd{.fd = err, .events = POLLIN, .revents = 0}};
  while (entries[0].fd >= 0 || entries[1].fd >= 0) {
    const int ready = ::poll(entries.data(), entries.size(), deadline.PollMillis());
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return Error(Code::kTimedOut, "was killed because it did not end in time");
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].revents == 0) continue;
      if (!Append(entries[i].fd, i == 0 ? &end->out : &end->err)) entries[i].fd = -1;
    }
    if (end->out.size() + end->err.size() > kMaxOutput) {
      return Error(Code::kUnavailable, fmt::format("was killed because it printed more than {} "
                                                   "bytes",
                                                   kMaxOutput));
    }
  }
  return Ok();
}

}  // namespace

Result<CommandEnd> RunCommand(const std::vector<std::string>& arguments, Deadline deadline) {
  const std::string& name = arguments.front();
  const std::string path = FindProgram(name);
  if (path.empty()) {
    return Error(Code::kUnsupported, fmt::format("the program {} is not installed", name));
  }
  FERRY_TRY_ASSIGN(Pipe out, MakePipe());
  FERRY_TRY_ASSIGN(Pipe err, MakePipe());
  FERRY_TRY_ASSIGN(const pid_t pid,
                   Spawn(path, arguments, out.write_end.get(), err.write_end.get()));
  Child child(pid);
  out.write_end.reset();  // so that their ends show when the program is gone
  err.write_end.reset();
  CommandEnd end;
  const Status collected = Collect(out.read_end.get(), err.read_end.get(), deadline, &end);
  if (!collected) {
    return Error(collected.error().code(), fmt::format("{} {}", name, collected.error().message()));
  }
  // It may have closed its output and live on.
  // A pidfd becomes readable when the process ends, so that this wait has a deadline, too.
  const UniqueFd gone = OpenProcess(pid);
  pollfd entry{.fd = gone.get(), .events = POLLIN, .revents = 0};
  while (gone && ::poll(&entry, 1, deadline.PollMillis()) < 0 && errno == EINTR) {
  }
  if (entry.revents == 0) {
    return Error(Code::kTimedOut,
                 fmt::format("{} was killed because it did not end in time", name));
  }
  end.exit_code = child.Reap();
  return end;
}

}  // namespace ferry::tools
