// A second process for tests: the same test program, started in a role. All waits have deadlines,
// and a peer never outlives the test.
#pragma once
#include <sys/types.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/fd.h"
#include "ferry/core/function_ref.h"
#include "ferry/core/result.h"

namespace ferry::tests {

// Time limit of steps without their own bound.
inline constexpr std::chrono::seconds kTimeout{60};
inline Deadline TestDeadline() { return Deadline::After(kTimeout); }

// Throws the error as a std::runtime_error; for steps that a test depends on.
[[noreturn]] void ThrowError(const Error& error);
template <class T>
T Must(Result<T> result) {
  if (!result) ThrowError(result.error());
  return *std::move(result);
}
inline void MustDo(const Status& status) {
  if (!status) ThrowError(status.error());
}

// Exchanges lines of text with another process. For one thread.
class LinePipe {
 public:
  // `socket` is one end of a socketpair.
  explicit LinePipe(UniqueFd socket) : socket_(std::move(socket)) {}

  // Errors: kTimedOut, kPeerLost if the reader is gone.
  Status Say(std::string_view line, Deadline deadline);
  // The next line, without its end. Errors: kTimedOut, kPeerLost after the last one.
  Result<std::string> Hear(Deadline deadline);

 private:
  Status WaitFor(short events, Deadline deadline) const;

  UniqueFd socket_;
  std::string heard_;  // not yet handed out
};

// The parent's handle of a process in a role. The destructor kills and reaps it.
class PeerProcess {
 public:
  // Runs /proc/self/exe in `role`, which main() looks up in the table of peer_main.cc.
  static Result<std::unique_ptr<PeerProcess>> Start(const std::string& role);
  // Runs any program, whose standard output Hear() then reads.
  static Result<std::unique_ptr<PeerProcess>> StartProgram(std::vector<std::string> command);
  // How Fork() makes the process. By clone(2) no handler of pthread_atfork(3) runs, so that it has
  // every descriptor of this one; it may then only make system calls.
  enum class Way { kFork, kClone };
  // A copy of this process that runs `body`, with its end of the pipe, and then exits with what
  // that returns, without running destructors.
  static Result<std::unique_ptr<PeerProcess>> Fork(FunctionRef<int(LinePipe&)> body,
                                                   Way way = Way::kFork);
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  pid_t pid() const noexcept { return pid_; }

  Result<std::string> Hear(Deadline deadline) { return pipe_.Hear(deadline); }
  // Sends a command that Obey() in the child executes; throws on failure.
  void Command(std::string_view line);
  // The result of the oldest command without an answer; throws its error.
  std::string Answer();

  // SIGKILL; returns at once.
  void Kill();
  // SIGSTOP; returns when the process has stopped. Errors: kTimedOut.
  Status Stop(Deadline deadline);
  void Continue();
  // The exit status, or 128 plus the signal that ended it. Errors: kTimedOut.
  Result<int> WaitExit(Deadline deadline);

 private:
  static Result<std::unique_ptr<PeerProcess>> Spawn(std::vector<std::string> command, int pipe_fd);
  PeerProcess(pid_t pid, UniqueFd pidfd, LinePipe pipe)
      : pid_(pid), pidfd_(std::move(pidfd)), pipe_(std::move(pipe)) {}

  const pid_t pid_;
  const UniqueFd pidfd_;
  LinePipe pipe_;
  int exit_code_ = -1;
  bool reaped_ = false;
};

// The child's side: what Start() passed on, or empty for the test itself.
std::string_view RoleOf(int argc, char** argv);
// Makes the child die with its parent and returns its end of the pipe. Call once.
LinePipe JoinParent();
// Carries out the parent's commands, one a line, until "quit" or the parent's end, and answers each
// by its result. Returns the exit status.
int Obey(LinePipe& parent, FunctionRef<Result<std::string>(const std::string&)> carry_out);

// "PeerLost <message>"
std::string Described(const Error& error);
// Bytes on a line.
std::string ToHex(std::span<const std::byte> bytes);
std::vector<std::byte> FromHex(std::string_view text);

}  // namespace ferry::tests
