// Manual pages.

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "tools/pages/pages.h"

namespace ferry::tools {
namespace {

// Text that troff prints as it is: a hyphen stays the character that a terminal copies, and no line
// is taken for a request.
std::string Escaped(const std::string& text) {
  std::string escaped;
  bool begins_line = true;
  for (const char c : text) {
    if (begins_line && (c == '.' || c == '\'')) escaped += "\\&";
    begins_line = c == '\n';
    if (c == '\\') {
      escaped += "\\e";
    } else if (c == '-') {
      escaped += "\\-";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

std::string Heading(const PageOption& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.names) names.push_back("\\fB" + Escaped(name) + "\\fR");
  std::string heading = fmt::format("{}", fmt::join(names, ", "));
  if (!option.positional && !option.value.empty())
    heading += " \\fI" + Escaped(option.value) + "\\fR";
  return heading;
}

std::string Synopsis(const PageCommand& command, const std::vector<PageOption>& options) {
  std::string line = ".B " + Escaped(command.Joined(" "));
  line += "\n[\\fIOPTION\\fR]...";
  for (const PageOption& option : options) {
    if (option.positional) line += " \\fI" + Escaped(option.names.front()) + "\\fR";
  }
  if (!Below(*command.app).empty()) line += " \\fICOMMAND\\fR";
  return line + "\n";
}

}  // namespace

std::string ManPage(const PageCommand& command, const std::string& version) {
  const std::vector<PageOption> options = OptionsOf(*command.app);
  const std::vector<const CLI::App*> below = Below(*command.app);
  const std::string name = command.Joined("-");
  const std::string title = CLI::detail::to_lower(name);
  std::string page = fmt::format(".TH \"{}\" 1 \"\" \"ferry {}\"\n.SH NAME\n{} \\- {}\n", title,
                                 version, Escaped(name), Escaped(command.app->get_description()));
  page += ".SH SYNOPSIS\n" + Synopsis(command, options);
  if (!below.empty()) {
    page += ".SH COMMANDS\n";
    for (const CLI::App* each : below) {
      page += fmt::format(".TP\n.BR {} (1)\n{}\n", Escaped(name + "-" + each->get_name()),
                          Escaped(each->get_description()));
    }
  }
  page += ".SH OPTIONS\n";
  for (const PageOption& option : options) {
    page += ".TP\n" + Heading(option) + "\n" + Escaped(option.help) + "\n";
    if (!option.fallback.empty()) page += ".br\nDefault: " + Escaped(option.fallback) + "\n";
  }
  const std::string footer = command.app->get_footer();
  if (!footer.empty()) page += ".SH NOTES\n.nf\n" + Escaped(footer) + "\n.fi\n";
  if (command.path.size() > 1) {
    PageCommand above = command;
    above.path.pop_back();
    page += ".SH SEE ALSO\n.BR " + Escaped(above.Joined("-")) + " (1)\n";
  }
  return page;
}

}  // namespace ferry::tools
