// Implements subcommands and roles of the test program.
#include "tools/testing/command_line.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>

#include "tools/support/report.h"
#include "tools/testing/captured_output.h"

namespace ferry::tools {
namespace {

constexpr auto kServerStart = std::chrono::seconds(30);

Status ParseAndRun(const CommandLine& arguments, Invocation* invocation) {
  CLI::App app("", "ferry");
  app.require_subcommand(1);
  for (const Subcommand& one : kSubcommands) {
    one.declare(app.add_subcommand(one.name), invocation);
  }
  CommandLine reversed(arguments.rbegin(), arguments.rend());  // as the parser takes them
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::ParseError& error) {
    return Error(Code::kInvalidArgument, error.what());
  }
  return invocation->run();
}

CommandLine ServerArguments(const std::string& kind, const CommandLine& more) {
  CommandLine arguments{kind, "server", "--json", "--listen", "127.0.0.1", "--port", "0"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

}  // namespace

std::vector<std::string> Ended::lines() const {
  std::vector<std::string> all;
  std::istringstream text(out);
  for (std::string line; std::getline(text, line);) all.push_back(line);
  return all;
}

Ended RunHere(const CommandLine& arguments) {
  CapturedOutput out(STDOUT_FILENO);
  CapturedOutput err(STDERR_FILENO);
  Invocation invocation;
  Ended ended;
  ended.status = ParseAndRun(arguments, &invocation);
  ended.exit_code = ended.status ? invocation.exit_code : ExitCodeOf(ended.status.error().code());
  ended.err = err.Take();
  ended.out = out.Take();
  return ended;
}

int RunRole(const CommandLine& arguments) {
  const std::string& role = arguments.front();
  if (role == "leave") return 0;
  if (role == "announce" || role == "wait") {
    if (role == "announce") PrintLine(arguments.at(1));
    (void)::pause();
    return 0;
  }
  CatchSignals();
  Invocation invocation;
  const Status status = ParseAndRun(arguments, &invocation);
  if (!status) PrintError(invocation, status.error());
  return status ? invocation.exit_code : ExitCodeOf(status.error().code());
}

TestServer::TestServer(const std::string& kind, const CommandLine& more)
    : process_(ServerProcess::Start(ServerArguments(kind, more), Deadline::After(kServerStart))) {
  EXPECT_TRUE(process_) << process_.error().ToString();
}

std::string TestServer::address() const {
  return fmt::format("127.0.0.1:{}", started() ? process_->port() : 0);
}

}  // namespace ferry::tools
