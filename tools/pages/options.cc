// What the declared command line says about its commands and options.

#include <CLI/CLI.hpp>
#include <algorithm>

#include "tools/pages/pages.h"

namespace ferry::tools {
namespace {

// "a,b" in "NAME:{a,b}", which is how the parser describes a choice; empty where there is none.
std::vector<std::string> ChoicesIn(const std::string& type) {
  const std::size_t begin = type.find('{');
  const std::size_t end = type.find('}', begin);
  if (begin == std::string::npos || end == std::string::npos) return {};
  std::vector<std::string> choices =
      CLI::detail::split(type.substr(begin + 1, end - begin - 1), ',');
  for (std::string& choice : choices) CLI::detail::trim(choice);
  return choices;
}

std::string ValueOf(const CLI::Option& option, const std::vector<std::string>& choices) {
  if (option.get_items_expected_max() == 0) return {};
  if (!choices.empty()) return CLI::detail::join(choices, "|");
  std::string type = option.get_type_name();
  return type.empty() ? "VALUE" : type.substr(0, type.find(':'));
}

void AddCommands(const CLI::App& app, std::vector<std::string> path,
                 std::vector<PageCommand>* commands) {
  path.push_back(app.get_name());
  commands->push_back({path, &app});
  for (const CLI::App* below : Below(app)) AddCommands(*below, path, commands);
}

}  // namespace

std::string PageCommand::Joined(const std::string& separator) const {
  return CLI::detail::join(path, separator);
}

std::vector<const CLI::App*> Below(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* each) { return !each->get_name().empty(); });
}

std::vector<PageCommand> CommandsOf(const CLI::App& program) {
  std::vector<PageCommand> commands;
  AddCommands(program, {}, &commands);
  return commands;
}

std::vector<PageOption> OptionsOf(const CLI::App& app) {
  std::vector<PageOption> options;
  // A group of options is a command without a name.
  for (const CLI::App* group :
       app.get_subcommands([](const CLI::App* each) { return each->get_name().empty(); })) {
    for (PageOption& option : OptionsOf(*group)) options.push_back(std::move(option));
  }
  for (const CLI::Option* declared : app.get_options()) {
    if (declared->get_group().empty()) continue;  // hidden
    PageOption option;
    for (const std::string& name : declared->get_snames()) option.names.push_back("-" + name);
    for (const std::string& name : declared->get_lnames()) option.names.push_back("--" + name);
    option.positional = option.names.empty();
    if (option.positional) option.names.push_back(declared->get_name(/*positional=*/true));
    const std::string type = declared->get_type_name();
    option.choices = ChoicesIn(type);
    option.value = ValueOf(*declared, option.choices);
    option.help = declared->get_description();
    std::replace(option.help.begin(), option.help.end(), '\n', ' ');
    option.fallback = declared->get_default_str();
    options.push_back(std::move(option));
  }
  return options;
}

}  // namespace ferry::tools
