// Entry point of the program `ferry`: subcommands, usage errors and exit codes.

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>

#include "ferry/core/build_commit.h"
#include "ferry/core/version.h"
#include "tools/support/command.h"
#include "tools/support/process.h"
#include "tools/support/program.h"
#include "tools/support/report.h"

namespace ferry::tools {
namespace {

// "ferry perf loopback": the program and the subcommands that were given.
std::string NameOf(const CLI::App& app) {
  std::string name = app.get_name();
  for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
    at = at->get_subcommands().front();
    name += " " + at->get_name();
  }
  return name;
}

std::string Explain(const CLI::App& app, const CLI::ParseError& error) {
  const auto unread = app.remaining(/*recurse=*/true);
  if (error.get_name() == "RequiredError" && !unread.empty()) {
    return fmt::format("unknown subcommand or option \"{}\"; see --help", unread.front());
  }
  std::string text = error.what();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text + "; see --help";
}

int OnParseError(const CLI::App& app, const CLI::ParseError& error, Invocation invocation,
                 std::span<char* const> arguments) {
  if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
  invocation.name = NameOf(app);
  // The parser stops at the mistake, so --json may not have been read.
  invocation.json = std::find_if(arguments.begin(), arguments.end(), [](const char* argument) {
                      return std::string_view(argument) == "--json";
                    }) != arguments.end();
  PrintError(invocation, Error(Code::kInvalidArgument, Explain(app, error)));
  return kExitUsage;
}

// The version, the commit, and whether the build had uncommitted changes.
std::string VersionLine() {
  const BuildCommit built = BuiltFrom();
  constexpr std::size_t kShort = 12;
  return fmt::format("ferry {} {}{}", FERRY_VERSION, built.commit.substr(0, kShort),
                     built.clean || built.commit.empty() ? "" : "+changes");
}

// A file or socket that got the number of a closed standard stream would get what is printed.
void OpenStandardStreams() {
  for (int fd = 0; fd >= 0 && fd <= STDERR_FILENO;) {
    fd = ::open("/dev/null", O_RDWR);
    if (fd > STDERR_FILENO) ::close(fd);
  }
}

int Main(int argc, char** argv) {
  OpenStandardStreams();
  CLI::App app;
  Invocation invocation;
  DeclareProgram(&app, &invocation);
  app.set_version_flag("--version", VersionLine());
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return OnParseError(app, error, invocation, std::span(argv, static_cast<std::size_t>(argc)));
  }
  invocation.name = NameOf(app);
  CatchSignals();
  const Status status = invocation.run();
  if (status) return invocation.exit_code;
  if (Interrupted()) {
    // Whatever failed then failed because of it: the terminal sends it to the other side, too.
    PrintError(invocation, InterruptedError());
    return kExitSignal + InterruptSignal();
  }
  PrintError(invocation, status.error());
  return ExitCodeOf(status.error().code());
}

}  // namespace
}  // namespace ferry::tools

int main(int argc, char** argv) { return ferry::tools::Main(argc, argv); }
