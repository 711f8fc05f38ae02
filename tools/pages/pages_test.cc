// Tests of the manual pages, and of the completions in the shells that are installed.

#include "tools/pages/pages.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "tools/support/command.h"
#include "tools/support/program.h"

namespace ferry::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Pages : public ::testing::Test {
 protected:
  Pages() { DeclareProgram(&program_, &invocation_); }

  // The pages of all commands, by name.
  std::string Page(const std::string& name) const {
    for (const PageCommand& command : CommandsOf(program_)) {
      if (command.Joined("-") == name) return ManPage(command, "1.2");
    }
    return {};
  }

  // What the script prints under bash after the completion has been loaded.
  std::string InShell(const std::string& shell, const std::string& text,
                      const std::string& script) {
    const std::string file =
        std::filesystem::temp_directory_path() / fmt::format("pages_test.{}", getpid());
    std::ofstream(file) << text;
    const std::string line = fmt::format("{} -c '{}' {} 2>&1", shell, script, file);
    const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(line.c_str(), "r"), pclose);
    std::string said;
    std::array<char, 4096> part{};
    while (pipe && std::fgets(part.data(), static_cast<int>(part.size()), pipe.get()) != nullptr) {
      said += part.data();
    }
    std::filesystem::remove(file);
    return said;
  }

  // The words that bash offers for the last of `words`, which is being typed.
  std::string Offered(const std::string& words) {
    return InShell(
        "bash", BashCompletion(program_),
        fmt::format("source \"$0\"; COMP_WORDS=({}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); "
                    "_ferry; echo \"${{COMPREPLY[@]}}\"",
                    words));
  }

  CLI::App program_;
  Invocation invocation_;
};

TEST_F(Pages, EveryCommandHasOneThatNamesItsOptions) {
  for (const PageCommand& command : CommandsOf(program_)) {
    const std::string page = ManPage(command, "1.2");
    EXPECT_THAT(page, AllOf(HasSubstr(".TH "), HasSubstr(".SH SYNOPSIS"), HasSubstr("ferry 1.2")));
    EXPECT_THAT(page, HasSubstr("\\fB\\-\\-help\\fR")) << command.Joined(" ");
  }
  EXPECT_THAT(Page("ferry-perf-loopback"), HasSubstr("\\fB\\-\\-wait\\fR \\fIblock|spin\\fR"));
}

TEST_F(Pages, TheProgramsHasItsCommandsAndExitCodes) {
  const std::string page = Page("ferry");
  for (const Subcommand& row : kSubcommands) EXPECT_THAT(page, HasSubstr(row.summary));
  EXPECT_THAT(page, HasSubstr("Exit codes:"));
}

TEST_F(Pages, NoLineOfTextIsTakenForARequest) {
  CLI::App app(".TH 'quoted' back\\slash", "odd");
  EXPECT_THAT(ManPage({{"odd"}, &app}, "1"), HasSubstr("odd \\- \\&.TH 'quoted' back\\eslash"));
}

TEST_F(Pages, BashOffersCommandsOptionsAndValues) {
  EXPECT_THAT(Offered("ferry p"), HasSubstr("perf"));
  EXPECT_THAT(Offered("ferry perf lo"), HasSubstr("loopback"));
  EXPECT_THAT(Offered("ferry perf loopback --no-v"), HasSubstr("--no-verify"));
  EXPECT_THAT(Offered("ferry perf loopback --wait s"), HasSubstr("spin"));
  EXPECT_THAT(Offered("ferry info --no-v"), Not(HasSubstr("--no-verify")));
  EXPECT_EQ(Offered("ferry perf loopback --trace f"), "\n");  // goes on to file names
}

TEST_F(Pages, ZshReadsItsCompletion) {
  if (InShell("zsh", "", "echo ready") != "ready\n") GTEST_SKIP() << "zsh is not installed";
  EXPECT_EQ(InShell("zsh", ZshCompletion(program_), "zsh -n \"$0\""), "");
}

}  // namespace
}  // namespace ferry::tools
