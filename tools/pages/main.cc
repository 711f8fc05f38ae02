// usage: ferry_make_pages DIR: writes the manual pages and completions of the program `ferry` into
// DIR.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <string>

#include "ferry/core/version.h"
#include "tools/pages/pages.h"
#include "tools/support/command.h"
#include "tools/support/program.h"

namespace ferry::tools {
namespace {

bool WritePage(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) fmt::print(stderr, "ferry_make_pages: {} cannot be written\n", path);
  return static_cast<bool>(file);
}

int WritePages(const std::string& folder) {
  CLI::App program;
  Invocation invocation;
  DeclareProgram(&program, &invocation);
  program.set_version_flag("--version", FERRY_VERSION);
  bool written = WritePage(folder + "/ferry.bash", BashCompletion(program)) &&
                 WritePage(folder + "/_ferry", ZshCompletion(program));
  for (const PageCommand& command : CommandsOf(program)) {
    written = written && WritePage(fmt::format("{}/{}.1", folder, command.Joined("-")),
                                   ManPage(command, FERRY_VERSION));
  }
  return written ? kExitOk : kExitFailed;
}

}  // namespace
}  // namespace ferry::tools

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: ferry_make_pages DIR\n");
    return ferry::tools::kExitUsage;
  }
  return ferry::tools::WritePages(argv[1]);
}
