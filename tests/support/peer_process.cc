// Implements peer processes and the line protocol to them.

#include "tests/support/peer_process.h"

#include <fmt/core.h>
#include <poll.h>
#include <sched.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <utility>

namespace ferry::tests {
namespace {

constexpr int kPipeFd = 3;  // in the child
constexpr std::string_view kRoleFlag = "--peer-role=";

// A socketpair end for the child must survive exec there and nowhere else.
class SpawnActions {
 public:
  SpawnActions() { ::posix_spawn_file_actions_init(&actions_); }
  ~SpawnActions() { ::posix_spawn_file_actions_destroy(&actions_); }
  SpawnActions(const SpawnActions&) = delete;
  SpawnActions& operator=(const SpawnActions&) = delete;
  posix_spawn_file_actions_t* get() noexcept { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_{};
};

}  // namespace

void ThrowError(const Error& error) { throw std::runtime_error(error.ToString()); }

std::string Described(const Error& error) {
  return fmt::format("{} {}", CodeName(error.code()), error.message());
}

std::string ToHex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte b : bytes) text += fmt::format("{:02x}", std::to_integer<unsigned>(b));
  return text;
}

std::vector<std::byte> FromHex(std::string_view text) {
  std::vector<std::byte> bytes(text.size() / 2);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    unsigned value = 0;
    (void)std::from_chars(text.data() + 2 * i, text.data() + 2 * i + 2, value, 16);
    bytes[i] = static_cast<std::byte>(value);
  }
  return bytes;
}

// ---- LinePipe -----------------------------------------------------------------------------------

Status LinePipe::WaitFor(short events, Deadline deadline) const {
  pollfd watched{socket_.get(), events, 0};
  for (;;) {
    const int ready = ::poll(&watched, 1, deadline.PollMillis());
    if (ready > 0) return Ok();
    if (ready == 0) return Error(Code::kTimedOut, "the other process said nothing in time");
    if (errno != EINTR) return ErrnoError("poll of the pipe between the processes", errno);
  }
}

Status LinePipe::Say(std::string_view line, Deadline deadline) {
  std::string text = fmt::format("{}\n", line);
  for (std::string_view left = text; !left.empty();) {
    const ssize_t sent =
        ::send(socket_.get(), left.data(), left.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      left.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      FERRY_TRY(WaitFor(POLLOUT, deadline));
    } else if (errno != EINTR) {
      return Error(Code::kPeerLost, ErrnoError("saying a line", errno).message());
    }
  }
  return Ok();
}

Result<std::string> LinePipe::Hear(Deadline deadline) {
  for (;;) {
    if (const auto end = heard_.find('\n'); end != std::string::npos) {
      std::string line = heard_.substr(0, end);
      heard_.erase(0, end + 1);
      return line;
    }
    std::array<char, 4096> chunk;
    const ssize_t got = ::recv(socket_.get(), chunk.data(), chunk.size(), MSG_DONTWAIT);
    if (got > 0) {
      heard_.append(chunk.data(), static_cast<std::size_t>(got));
    } else if (got == 0 || errno == ECONNRESET) {
      return Error(Code::kPeerLost, "the other process has ended");
    } else if (errno == EAGAIN) {
      FERRY_TRY(WaitFor(POLLIN, deadline));
    } else if (errno != EINTR) {
      return ErrnoError("hearing a line", errno);
    }
  }
}

// ---- PeerProcess --------------------------------------------------------------------------------

Result<std::unique_ptr<PeerProcess>> PeerProcess::Start(const std::string& role) {
  return Spawn({"/proc/self/exe", std::string(kRoleFlag) + role}, kPipeFd);
}

Result<std::unique_ptr<PeerProcess>> PeerProcess::StartProgram(std::vector<std::string> command) {
  return Spawn(std::move(command), STDOUT_FILENO);
}

namespace {

// Whether no other thread of this process is on a CPU or waits for one.
[[maybe_unused]] bool OthersSleep() {
  const std::string own = fmt::format("{}", ::gettid());
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (task.path().filename() == own) continue;
    std::string stat;
    std::getline(std::ifstream(task.path() / "stat"), stat);
    const auto name_end = stat.rfind(')');  // the state comes after the name
    if (name_end != std::string::npos && stat.compare(name_end, 3, ") S") != 0) return false;
  }
  return true;
}

// g++ 12's AddressSanitizer leaves a child the locks of its allocator as other threads of the
// parent held them at the fork, and a child of a thread that was just beginning never ended.
void AwaitForkableMoment() {
#ifdef __SANITIZE_ADDRESS__
  const Deadline deadline = Deadline::After(std::chrono::seconds(5));
  while (!OthersSleep() && !deadline.expired()) ::sched_yield();
#endif
}

}  // namespace

Result<std::unique_ptr<PeerProcess>> PeerProcess::Fork(FunctionRef<int(LinePipe&)> body, Way way) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return ErrnoError("socketpair", errno);
  }
  UniqueFd ours(ends[0]);
  UniqueFd theirs(ends[1]);
  AwaitForkableMoment();
  const auto pid =
      way == Way::kFork
          ? ::fork()
          : static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
  if (pid < 0) return ErrnoError("fork", errno);
  if (pid == 0) {
    (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)::close(ours.get());
    LinePipe parent(std::move(theirs));
    ::_exit(body(parent));
  }
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd) return ErrnoError("pidfd_open", errno);
  return std::unique_ptr<PeerProcess>(
      new PeerProcess(pid, std::move(pidfd), LinePipe(std::move(ours))));
}

Result<std::unique_ptr<PeerProcess>> PeerProcess::Spawn(std::vector<std::string> command,
                                                        int pipe_fd) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return ErrnoError("socketpair", errno);
  }
  UniqueFd ours(ends[0]);
  const UniqueFd theirs(ends[1]);
  SpawnActions actions;
  ::posix_spawn_file_actions_adddup2(actions.get(), theirs.get(), pipe_fd);
  std::vector<char*> arguments;
  for (std::string& argument : command) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  pid_t pid = 0;
  if (const int error =
          ::posix_spawn(&pid, arguments.front(), actions.get(), nullptr, arguments.data(), environ);
      error != 0) {
    return ErrnoError("posix_spawn of a peer", error);
  }
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd) return ErrnoError("pidfd_open", errno);
  return std::unique_ptr<PeerProcess>(
      new PeerProcess(pid, std::move(pidfd), LinePipe(std::move(ours))));
}

PeerProcess::~PeerProcess() {
  if (reaped_) return;
  Kill();
  (void)WaitExit(Deadline::After(std::chrono::seconds(30)));
}

void PeerProcess::Command(std::string_view line) { Must(pipe_.Say(line, TestDeadline())); }

std::string PeerProcess::Answer() {
  std::string answer = Must(pipe_.Hear(TestDeadline()));
  if (answer.starts_with("ok ")) return answer.substr(3);
  throw std::runtime_error("the peer answered: " + answer);
}

void PeerProcess::Kill() { (void)::kill(pid_, SIGKILL); }

Status PeerProcess::Stop(Deadline deadline) {
  (void)::kill(pid_, SIGSTOP);
  // No descriptor tells of a stop, and it takes no longer than a context switch.
  for (siginfo_t info{}; info.si_pid == 0;) {
    if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WNOHANG) != 0) {
      return ErrnoError("waiting for a peer to stop", errno);
    }
    if (info.si_pid == 0 && deadline.expired()) {
      return Error(Code::kTimedOut, "the peer did not stop in time");
    }
    ::sched_yield();
  }
  return Ok();
}

void PeerProcess::Continue() { (void)::kill(pid_, SIGCONT); }

Result<int> PeerProcess::WaitExit(Deadline deadline) {
  if (reaped_) return exit_code_;
  pollfd watched{pidfd_.get(), POLLIN, 0};
  int ready = 0;
  do {
    ready = ::poll(&watched, 1, deadline.PollMillis());
  } while (ready < 0 && errno == EINTR);
  if (ready <= 0) {
    return Error(Code::kTimedOut, fmt::format("process {} did not end in time", pid_));
  }
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED) != 0) {
    return ErrnoError("waitid", errno);
  }
  reaped_ = true;
  exit_code_ = info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
  return exit_code_;
}

// ---- the child ----------------------------------------------------------------------------------

std::string_view RoleOf(int argc, char** argv) {
  if (argc != 2) return {};
  const std::string_view flag = argv[1];
  return flag.substr(0, kRoleFlag.size()) == kRoleFlag ? flag.substr(kRoleFlag.size())
                                                       : std::string_view();
}

LinePipe JoinParent() {
  // A parent that has died before this is noticed by the pipe's end.
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  return LinePipe(UniqueFd(kPipeFd));
}

int Obey(LinePipe& parent, FunctionRef<Result<std::string>(const std::string&)> carry_out) {
  for (;;) {
    const auto line = parent.Hear(Deadline::After(std::chrono::minutes(10)));
    if (!line || *line == "quit") return line ? 0 : 1;
    const auto answer = carry_out(*line);
    const std::string said = answer ? "ok " + *answer : "error " + Described(answer.error());
    if (!parent.Say(said, TestDeadline())) return 1;
  }
}

}  // namespace ferry::tests
