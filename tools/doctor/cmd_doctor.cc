// Command line of `ferry doctor`.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <optional>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/net/address.h"
#include "tools/doctor/check.h"
#include "tools/doctor/checks.h"
#include "tools/doctor/machine.h"
#include "tools/support/command.h"
#include "tools/support/json.h"
#include "tools/support/report.h"

namespace ferry::tools {
namespace {

struct DoctorJob {
  std::string peer;
  std::vector<std::string> settings;
  bool tcpx = false;
  bool nccl = false;
  bool nixl = false;
  bool json = false;
};

// Wrong variables are for the doctor to tell of; wrong options are wrong usage.
Result<Config> SettingsFor(const DoctorJob& job, std::optional<Error>* wrong) {
  auto config = LoadConfig(job.settings);
  if (config) return config;
  // If the environment alone is fine, the options are wrong.
  const auto environment = Config::FromEnvironment();
  if (environment) return config;
  *wrong = environment.error();
  return Config();
}

Result<std::optional<net::Address>> PeerOf(const DoctorJob& job) {
  if (job.peer.empty()) return std::optional<net::Address>();
  FERRY_TRY_ASSIGN(net::Address peer, net::ParseAddress(job.peer, kPerfPort));
  if (peer.host.empty() || peer.port == 0) {
    return Error(Code::kInvalidArgument,
                 fmt::format("--peer {} should name a host, and a port that is not 0", job.peer));
  }
  return std::optional(std::move(peer));
}

Result<ExitCode> RunDoctor(const DoctorJob& job) {
  std::optional<Error> wrong;
  const auto system = CreateMachine();
  Context context;
  context.system = system.get();
  context.tcpx = job.tcpx;
  context.nccl = job.nccl;
  context.nixl = job.nixl;
  FERRY_TRY_ASSIGN(context.config, SettingsFor(job, &wrong));
  FERRY_TRY_ASSIGN(context.peer, PeerOf(job));
  std::vector<Check> checks{CheckSettings(system.get(), wrong)};
  for (Check& check : Examine(std::move(context))) checks.push_back(std::move(check));
  PrintLine(job.json ? DumpJson(ToJson(checks)) : DoctorText(checks));
  return ExitCodeOf(WorstOf(checks));
}

}  // namespace

void DeclareDoctor(CLI::App* app, Invocation* invocation) {
  // Lives as long as the program: the parser writes into it, the subcommand reads it. Each
  // declaration begins with the defaults.
  static DoctorJob job;
  job = DoctorJob();
  app->add_option(
         "--peer", job.peer,
         fmt::format("Also check the path to this peer, and connect to it as a program that "
                     "uses the library does (default port {})",
                     kPerfPort))
      ->type_name("HOST[:PORT]");
  app->add_flag("--tcpx", job.tcpx,
                "Also check the requirements of GPUDirect-TCPX if no plugin of it is configured");
  app->add_flag("--nccl", job.nccl,
                "Also check the requirements of libnccl-net-ferry.so as NCCL's network if "
                "NCCL_NET_PLUGIN is not set");
  app->add_flag("--nixl", job.nixl,
                "Also check the requirements of libplugin_FERRY.so as NIXL's back end if "
                "NIXL_PLUGIN_DIR is not set");
  DeclarePeerSettings(app, &job.settings);
  DeclareJson(app, invocation);
  app->callback([invocation] {
    invocation->run = [invocation]() -> Status {
      job.json = invocation->json;
      FERRY_TRY_ASSIGN(invocation->exit_code, RunDoctor(job));
      return Ok();
    };
  });
}

}  // namespace ferry::tools
