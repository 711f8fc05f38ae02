// Manual pages and shell completions, made from the options that the program declares.
#pragma once
#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): the library's
class App;
}

namespace ferry::tools {

// A command of the program, with those above it: {"ferry", "perf", "loopback"}.
struct PageCommand {
  std::vector<std::string> path;
  const CLI::App* app = nullptr;  // borrowed

  std::string Joined(const std::string& separator) const;
};

// The program and every command below it, in the order of their declarations.
std::vector<PageCommand> CommandsOf(const CLI::App& program);

// A manual page of section 1, as troff with the macros of man(7).
std::string ManPage(const PageCommand& command, const std::string& version);

// Scripts that bash and zsh load to complete the program's commands, options and their values.
std::string BashCompletion(const CLI::App& program);
std::string ZshCompletion(const CLI::App& program);

// ---- for the functions above --------------------------------------------------------------------

struct PageOption {
  // "--json", "-h"; one name without dashes for a positional argument.
  std::vector<std::string> names;
  // What follows it, "FILE"; empty for a flag.
  std::string value;
  // The values that are allowed, where they are few.
  std::vector<std::string> choices;
  // One paragraph.
  std::string help;
  // What holds without it; may be empty.
  std::string fallback;
  bool positional = false;
};

std::vector<PageOption> OptionsOf(const CLI::App& app);
// The commands directly below one.
std::vector<const CLI::App*> Below(const CLI::App& app);

}  // namespace ferry::tools
