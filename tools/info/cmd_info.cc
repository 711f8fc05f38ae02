// Implements `ferry info`: build, machine, kernel and settings.

#include <fmt/core.h>
#include <sched.h>
#include <sys/utsname.h>

#include <CLI/CLI.hpp>
#include <array>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "ferry/core/build_commit.h"
#include "ferry/core/config.h"
#include "ferry/core/unknown_variables.h"
#include "ferry/core/version.h"
#include "ferry/cuda/open_devices.h"
#include "ferry/net/choose_provider.h"
#include "ferry/net/tcp/factory.h"
#include "tools/info/devices.h"
#include "tools/info/network.h"
#include "tools/info/plugin.h"
#include "tools/support/command.h"
#include "tools/support/process.h"
#include "tools/support/report.h"
#include "tools/support/uccl_variables.h"

namespace ferry::tools {
namespace {

#ifdef __SANITIZE_ADDRESS__
constexpr const char* kSanitizer = "address";
#elif defined(__SANITIZE_THREAD__)
constexpr const char* kSanitizer = "thread";
#else
constexpr const char* kSanitizer = "none";
#endif

#ifdef __VERSION__
constexpr const char* kCompiler = __VERSION__;
#endif

// Kernel settings about sockets and pages.
constexpr std::array kKernelFiles = {
    "/proc/sys/net/ipv4/tcp_congestion_control",
    "/proc/sys/net/ipv4/tcp_available_congestion_control",
    "/proc/sys/net/ipv4/tcp_allowed_congestion_control",
    "/proc/sys/net/ipv4/tcp_wmem",
    "/proc/sys/net/ipv4/tcp_rmem",
    "/proc/sys/net/core/wmem_max",
    "/proc/sys/net/core/rmem_max",
    "/proc/sys/net/core/default_qdisc",
    "/proc/sys/fs/pipe-max-size",
    "/sys/kernel/mm/transparent_hugepage/enabled",
};

// The first line, its whitespace as single spaces; "" where there is none.
std::string FirstLine(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  std::istringstream words(line);
  std::string text;
  for (std::string word; words >> word;) text += (text.empty() ? "" : " ") + word;
  return text;
}

Json BuildInfo() {
  return Json{{"version", FERRY_VERSION},
              {"commit", BuiltFrom().commit},
              {"clean", BuiltFrom().clean},
              {"compiler", fmt::format("g++ {}", kCompiler)},
              {"build_type", FERRY_BUILD_TYPE},
              {"sanitizer", kSanitizer},
              {"cuda", *cuda::DeviceCodeTargets() != '\0'},
              {"device_code", cuda::DeviceCodeTargets()}};
}

int UsableCores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return ::sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 0;
}

Json MachineInfo() {
  utsname name{};
  (void)::uname(&name);
  return Json{{"kernel", fmt::format("{} {} {}", name.sysname, name.release, name.machine)},
              {"cores", std::thread::hardware_concurrency()},
              {"usable_cores", UsableCores()},
              {"memory_available_bytes", AvailableMemory()}};
}

Json ProviderInfo() {
  const auto tcp = net::tcp::CreateProvider();
  const net::Capabilities capabilities = tcp->capabilities();
  return Json::array({Json{{"name", tcp->name()},
                           {"ipv6", capabilities.ipv6},
                           {"other_process", capabilities.other_process},
                           {"spliced_pages", capabilities.spliced_pages}}});
}

Json KernelInfo() {
  Json kernel = Json::object();
  for (const char* path : kKernelFiles) kernel[path] = FirstLine(path);
  return kernel;
}

Json SettingInfo(const Config& config) {
  Json settings = Json::array();
  for (const ConfigEntry& entry : config.Describe()) {
    settings.push_back(Json{{"name", entry.name},
                            {"variable", entry.variable},
                            {"value", entry.value},
                            {"default", entry.default_text},
                            {"source", entry.source},
                            {"unit", entry.unit},
                            {"range", entry.range},
                            {"help", entry.help}});
  }
  return settings;
}

Json Warnings() {
  Json warnings = Json::array();
  for (const std::string& variable : UnknownVariables()) {
    warnings.push_back(DescribeUnknown(variable));
  }
  return warnings;
}

std::string Plain(const Json& value) {
  return value.is_string() ? value.get<std::string>() : DumpJson(value);
}

void PrintObject(const char* title, const Json& object) {
  PrintLine(title);
  for (const auto& [name, value] : object.items()) {
    PrintLine(fmt::format("  {:<52} {}", name, Plain(value)));
  }
}

void PrintInfo(const Json& info) {
  for (const auto& [name, title] : {std::pair{"build", "Build"}, std::pair{"machine", "Machine"},
                                    std::pair{"kernel", "Kernel"}}) {
    PrintObject(title, info[name]);
  }
  PrintLine("Devices");
  PrintDevices(info["devices"]);
  PrintLine("Addresses");
  PrintInterfaces(info["interfaces"]);
  if (info.contains("peer")) PrintPeer(info["peer"]);
  PrintLine("Providers");
  for (const Json& one : info["providers"]) PrintLine("  " + Plain(one["name"]));
  PrintLine(fmt::format("Provider of endpoints: {}, because {}", Plain(info["provider"]["name"]),
                        Plain(info["provider"]["reason"])));
  PrintLine("Network plugin");
  PrintPlugin(info["plugin"]);
  PrintLine("Names of UCCL's");
  PrintUcclVariables(info["uccl_variables"]);
  PrintLine("Settings");
  for (const Json& one : info["settings"]) {
    const std::string value = Plain(one["value"]);
    PrintLine(fmt::format("  {:<20} {:<10} {}", Plain(one["name"]), value.empty() ? "-" : value,
                          Plain(one["source"])));
    PrintLine(fmt::format("  {:<20} {}; {}: {}", "", Plain(one["variable"]), Plain(one["help"]),
                          Plain(one["range"])));
  }
  for (const Json& warning : info["warnings"]) PrintLine("Warning: " + Plain(warning));
}

struct InfoJob {
  std::vector<std::string> settings;
  std::string peer;
  bool addresses = false;
};

Status RunAddresses(const Config& config, bool json) {
  const Json interfaces = InterfaceInfo(config);
  if (json) {
    PrintLine(DumpJson(Json{{"interfaces", interfaces}}));
  } else {
    PrintInterfaces(interfaces);
  }
  return Ok();
}

Status RunInfo(const InfoJob& job, bool json) {
  FERRY_TRY_ASSIGN(const Config config, LoadConfig(job.settings));
  if (job.addresses) return RunAddresses(config, json);
  Json info;
  info["build"] = BuildInfo();
  info["machine"] = MachineInfo();
  info["kernel"] = KernelInfo();
  info["devices"] = DeviceInfo(config);
  info["interfaces"] = InterfaceInfo(config);
  info["providers"] = ProviderInfo();
  const net::ProviderChoice choice = net::ResolveProvider(config);
  info["provider"] = Json{{"name", choice.provider}, {"reason", choice.reason}};
  info["plugin"] = PluginInfo(config);
  info["uccl_variables"] = UcclVariables();
  info["settings"] = SettingInfo(config);
  info["warnings"] = Warnings();
  // A peer that cannot be reached is part of the report; its error decides the exit code.
  Status reached = Ok();
  if (!job.peer.empty()) {
    FERRY_TRY_ASSIGN(PeerReport report, PeerInfo(config, job.peer));
    info["peer"] = std::move(report.info);
    reached = std::move(report.reached);
  }
  if (json) {
    PrintLine(DumpJson(info));
  } else {
    PrintInfo(info);
  }
  return reached;
}

}  // namespace

void DeclareInfo(CLI::App* app, Invocation* invocation) {
  // Lives as long as the program: the parser writes into it, the subcommand reads it. Each
  // declaration begins with the defaults.
  static InfoJob job;
  job = {};
  app->add_option("--peer", job.peer,
                  "Also show the routes to an endpoint, connect to it, and show every lane")
      ->type_name("HOST[:PORT]");
  app->add_flag("--addresses", job.addresses,
                "Show only this machine's addresses: which of them peers are told, and why not the "
                "others");
  DeclarePeerSettings(app, &job.settings);
  DeclareJson(app, invocation);
  app->callback(
      [invocation] { invocation->run = [invocation] { return RunInfo(job, invocation->json); }; });
}

}  // namespace ferry::tools
