// Options, settings and exit codes that all subcommands share.

#include "tools/support/command.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>

#include "ferry/core/log.h"
#include "ferry/core/unknown_variables.h"
#include "ferry/tcpx/uccl_variables.h"

namespace ferry::tools {

ExitCode ExitCodeOf(Code code) noexcept {
  switch (code) {
    case Code::kInvalidArgument:
    case Code::kUnsupported: return kExitUsage;
    case Code::kPeerLost: return kExitPeer;
    case Code::kTimedOut: return kExitTimedOut;
    case Code::kUnavailable:
    case Code::kRefused:
    case Code::kCancelled:
    case Code::kDeviceLost:
    case Code::kCorrupt:
    case Code::kInternal: return kExitFailed;
  }
  return kExitFailed;
}

void DeclareJson(CLI::App* app, Invocation* invocation) {
  app->add_flag("--json", invocation->json, "Print JSON, one object per line");
}

void DeclareSettings(CLI::App* app, std::vector<std::string>* assignments) {
  app->add_option("--set", *assignments, "Any setting of `ferry info`, as NAME=VALUE; repeatable")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false);
}

namespace {

// An option that is another form of --set, and goes before it. Declared after it: the parser runs
// options in the order of their declarations, and --set replaces the assignments.
CLI::Option* AddSetting(CLI::App* app, const char* flag, const char* name,
                        std::vector<std::string>* assignments, const char* help) {
  const auto problem = [name](const std::string& value) {
    const Status set = Config().Set(name, value);
    return set ? std::string() : set.error().message();
  };
  return app
      ->add_option_function<std::string>(
          flag,
          [assignments, name](const std::string& value) {
            assignments->push_back(fmt::format("{}={}", name, value));
          },
          fmt::format("{} (as --set {}=...)", help, name))
      ->check(CLI::Validator(problem, ""));
}

}  // namespace

void DeclareProviderSettings(CLI::App* app, std::vector<std::string>* assignments) {
  AddSetting(app, "--provider", "provider", assignments,
             "tcp, plugin, plugin:PATH (an NCCL network plugin) or auto; give it to both sides")
      ->type_name("NAME");
  AddSetting(app, "--lanes,--channels", "lanes", assignments,
             "Connections to the peer, with a plugin over its devices in turn; 0: automatic")
      ->type_name("N");
  AddSetting(app, "--chunk", "plugin_chunk_bytes", assignments,
             "Parts in which a plugin carries a payload; give it to both sides")
      ->type_name("SIZE");
  AddSetting(app, "--unpack", "plugin_unpack", assignments,
             "How pieces that a plugin receives are put into GPU memory: auto, kernel, dma or host")
      ->type_name("HOW");
}

void DeclarePeerSettings(CLI::App* app, std::vector<std::string>* assignments) {
  DeclareSettings(app, assignments);
  const auto set = [assignments](const char* name, const std::string& value) {
    assignments->push_back(fmt::format("{}={}", name, value));
  };
  app->add_option_function<std::string>(
         "--secret-file", [set](const std::string& path) { set("secret_file", path); },
         "File with the secret that both sides share (as --set secret_file=FILE)")
      ->type_name("FILE");
  app->add_option_function<std::string>(
         "--tls", [set](const std::string& mode) { set("tls", mode); },
         "off, psk (by the secret) or cert: TLS on every lane (as --set tls=MODE)")
      ->type_name("MODE");
  const auto add_file = [app, set](const char* flag, const char* name, const char* help) {
    app->add_option_function<std::string>(
           flag, [set, name](const std::string& path) { set(name, path); }, help)
        ->type_name("FILE");
  };
  add_file("--tls-cert", "tls_cert", "Certificate of this side, PEM (as --set tls_cert=FILE)");
  add_file("--tls-key", "tls_key", "Key of that certificate, PEM (as --set tls_key=FILE)");
  add_file("--tls-ca", "tls_ca", "Authorities of the peer's, PEM (as --set tls_ca=FILE)");
  app->add_flag_callback(
      "--insecure", [set] { set("insecure", "on"); },
      "Without a secret, trust peers of other machines and users (as --set insecure=on)");
}

Result<Config> LoadConfig(const std::vector<std::string>& assignments) {
  FERRY_TRY_ASSIGN(Config config, Config::FromEnvironment());
  for (const std::string& assignment : assignments) {
    const auto equals = assignment.find('=');
    if (equals == std::string::npos) {
      return Error(Code::kInvalidArgument,
                   fmt::format("--set {} has no value; write --set NAME=VALUE", assignment));
    }
    FERRY_TRY(config.Set(assignment.substr(0, equals), assignment.substr(equals + 1), "--set"));
  }
  FERRY_TRY(tcpx::ApplyUcclVariables(&config));
  FERRY_TRY(config.Validate());
  SetLogLevel(config.log_level);
  SetLogFormat(config.log_format);
  WarnOfUnknownVariables();
  return config;
}

}  // namespace ferry::tools
