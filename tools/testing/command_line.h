// Runs subcommands of the program in a test's own process, or in a child of it.
#pragma once
#include <string>
#include <vector>

#include "ferry/core/result.h"
#include "tools/support/command.h"
#include "tools/support/process.h"

namespace ferry::tools {

using CommandLine = std::vector<std::string>;

// How a subcommand ended.
struct Ended {
  Status status = Ok();
  ExitCode exit_code = kExitOk;
  std::string out;
  std::string err;

  // The error's message; empty where there is none.
  std::string message() const { return status ? std::string() : status.error().message(); }
  std::vector<std::string> lines() const;  // of `out`
};

// Parses the arguments as the program does ("perf", "loopback", ...), and runs the subcommand here.
// A mistake of usage is kInvalidArgument. Collects both outputs.
Ended RunHere(const CommandLine& arguments);

// What a test program does instead of tests when its first argument is not an option: "announce"
// prints the next argument as a server's announcement and waits for a signal, "leave" ends at once,
// "wait" announces nothing; anything else is a subcommand. ServerProcess starts it.
int RunRole(const CommandLine& arguments);

// A server of this program in a child process, at a free port of the loopback interface. `kind`:
// "perf" or "transfer". A failure to start fails the test, and leaves the port 0.
class TestServer {
 public:
  explicit TestServer(const std::string& kind, const CommandLine& more = {});
  bool started() const noexcept { return static_cast<bool>(process_); }
  std::string address() const;

 private:
  Result<ServerProcess> process_;
};

}  // namespace ferry::tools
