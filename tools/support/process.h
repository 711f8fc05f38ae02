// Signals, CPU time, free memory and a child process of the same program.
#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/fd.h"
#include "ferry/core/result.h"

namespace ferry::tools {

// Installs handlers: the first SIGINT or SIGTERM only sets Interrupted(), the second kills the
// process; SIGPIPE and SIGXFSZ are ignored.
void CatchSignals();
bool Interrupted() noexcept;
// The first of these signals that was received; 0 for none.
int InterruptSignal() noexcept;
Error InterruptedError();

// User and system time of all threads of this process so far, in seconds.
double CpuSeconds() noexcept;

// Bytes that programs can still allocate without swapping; 0 if the kernel does not report it.
std::uint64_t AvailableMemory();

// A child process of this program that runs as a server and announces itself with a JSON line on
// its stdout. It ends with this object, and with this process however that dies.
class ServerProcess {
 public:
  // Returns when the server listens. `arguments`: after the program's name. Call from the main
  // thread. Errors: kUnavailable, kTimedOut.
  static Result<ServerProcess> Start(const std::vector<std::string>& arguments, Deadline deadline);
  ServerProcess(ServerProcess&& other) noexcept;
  ServerProcess& operator=(ServerProcess&&) = delete;
  ~ServerProcess();

  std::uint16_t port() const noexcept { return port_; }

 private:
  ServerProcess(pid_t pid, UniqueFd output) : pid_(pid), output_(std::move(output)) {}
  Status ReadAnnouncement(Deadline deadline);

  pid_t pid_;
  UniqueFd output_;  // its stdout; at its end the process is gone
  std::uint16_t port_ = 0;
};

}  // namespace ferry::tools
