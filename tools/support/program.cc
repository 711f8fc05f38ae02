// Subcommands, and the text below the program's --help.

#include "tools/support/program.h"

#include <CLI/CLI.hpp>

#include "tools/support/command.h"

namespace ferry::tools {
namespace {

constexpr const char* kFooter =
    "Exit codes:\n"
    "  0  ok\n"
    "  1  failed: the transfer, its verification, or a resource\n"
    "  2  wrong usage or setting\n"
    "  3  the peer could not be reached, or was lost\n"
    "  4  timed out\n"
    "  5  doctor: at worst a warning\n"
    "  6  doctor: a problem\n"
    "  130  interrupted by Ctrl-C (SIGINT); 143: by SIGTERM. Servers end with 0 then\n";

}  // namespace

void DeclareProgram(CLI::App* app, Invocation* invocation) {
  app->name("ferry");
  app->description("Moves tensors between processes over TCP.");
  app->require_subcommand(1);
  app->footer(kFooter);
  for (const Subcommand& row : kSubcommands) {
    CLI::App* const command = app->add_subcommand(row.name, row.summary);
    command->footer("");
    row.declare(command, invocation);
  }
}

}  // namespace ferry::tools
