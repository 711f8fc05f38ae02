// Completions for bash and zsh.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "tools/pages/pages.h"

namespace ferry::tools {
namespace {

bool TakesValue(const PageOption& option) { return !option.positional && !option.value.empty(); }

// The words that may follow a command: those below it, and its options.
std::string WordsAfter(const PageCommand& command) {
  std::vector<std::string> words;
  for (const CLI::App* below : Below(*command.app)) words.push_back(below->get_name());
  for (const PageOption& option : OptionsOf(*command.app)) {
    if (!option.positional) words.insert(words.end(), option.names.begin(), option.names.end());
  }
  return fmt::format("{}", fmt::join(words, " "));
}

// The values of options: one line of a case statement each. Where they are not known, nothing is
// offered and bash goes on to file names.
std::string BashValues(const PageCommand& command) {
  std::string lines;
  for (const PageOption& option : OptionsOf(*command.app)) {
    if (!TakesValue(option)) continue;
    std::vector<std::string> patterns;
    for (const std::string& name : option.names)
      patterns.push_back(command.Joined("/") + "/" + name);
    lines += fmt::format("    {}) COMPREPLY=($(compgen -W '{}' -- \"$current\")); return ;;\n",
                         fmt::join(patterns, " | "), fmt::join(option.choices, " "));
  }
  return lines;
}

// Text inside single quotes of a shell.
std::string Quoted(std::string text) {
  for (std::size_t at = text.find('\''); at != std::string::npos; at = text.find('\'', at + 4)) {
    text.replace(at, 1, "'\\''");
  }
  return text;
}

// Characters that have a meaning in what _arguments and _describe read.
std::string ZshEscaped(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') escaped += '\\';
    escaped += c;
  }
  return Quoted(escaped);
}

std::string ZshOption(const PageOption& option, const std::string& name) {
  std::string spec = fmt::format("*{}[{}]", name, ZshEscaped(option.help));
  if (TakesValue(option)) {
    spec += ":" + ZshEscaped(option.value) + ":";
    if (!option.choices.empty()) {
      spec += fmt::format("({})", fmt::join(option.choices, " "));
    } else {
      spec += "_files";
    }
  }
  return "    '" + spec + "' \\\n";
}

std::string ZshFunction(const PageCommand& command) {
  const std::string function = "_" + command.Joined("_");
  const std::vector<const CLI::App*> below = Below(*command.app);
  std::string text =
      function + "() {\n  local context state state_descr line\n  typeset -A opt_args\n";
  text += "  _arguments -C \\\n";
  for (const PageOption& option : OptionsOf(*command.app)) {
    if (option.positional) continue;
    for (const std::string& name : option.names) text += ZshOption(option, name);
  }
  if (below.empty()) return text + "    '*:argument:_files'\n}\n";
  text +=
      "    '1:command:->command' \\\n    '*::argument:->arguments'\n  case $state in\n    "
      "command)\n";
  text += "      local -a commands=(\n";
  std::string calls;
  for (const CLI::App* each : below) {
    text += fmt::format("        '{}:{}'\n", each->get_name(), ZshEscaped(each->get_description()));
    calls += fmt::format("        {0}) {1}_{0} ;;\n", each->get_name(), function);
  }
  text +=
      "      )\n      _describe command commands\n      ;;\n    arguments)\n      case $words[1] "
      "in\n";
  return text + calls + "      esac\n      ;;\n  esac\n}\n";
}

}  // namespace

std::string BashCompletion(const CLI::App& program) {
  std::vector<std::string> commands;
  std::string values;
  std::string words;
  for (const PageCommand& command : CommandsOf(program)) {
    const std::string joined = command.Joined("/");
    if (command.path.size() > 1) commands.push_back(joined);
    values += BashValues(command);
    words += fmt::format("    {}) words='{}' ;;\n", joined, WordsAfter(command));
  }
  const std::string& name = program.get_name();
  return fmt::format(
      "# Completion of {0} for bash; made from its options.\n"
      "_{0}() {{\n"
      "  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}}\n"
      "  local command={0} word words\n"
      "  for word in \"${{COMP_WORDS[@]:1:COMP_CWORD-1}}\"; do\n"
      "    case $command/$word in\n"
      "    {1}) command+=/$word ;;\n"
      "    esac\n"
      "  done\n"
      "  COMPREPLY=()\n"
      "  case $command/$previous in\n{2}  esac\n"
      "  case $command in\n{3}  esac\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
      "}}\n"
      "complete -o bashdefault -o default -F _{0} {0}\n",
      name, fmt::join(commands, " | "), values, words);
}

std::string ZshCompletion(const CLI::App& program) {
  const std::string& name = program.get_name();
  std::string text =
      fmt::format("#compdef {0}\n# Completion of {0} for zsh; made from its options.\n", name);
  for (const PageCommand& command : CommandsOf(program)) text += ZshFunction(command);
  return text + fmt::format("_{0} \"$@\"\n", name);
}

}  // namespace ferry::tools
