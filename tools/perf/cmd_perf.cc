// Command line of `ferry perf` and its subcommands client, server and loopback.

#include "tools/perf/cmd_perf.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <array>
#include <memory>
#include <optional>

#include "ferry/core/units.h"
#include "ferry/cuda/open_devices.h"
#include "ferry/net/address.h"
#include "ferry/tcpx/uccl_variables.h"
#include "tools/support/command.h"
#include "tools/support/memory_choice.h"
#include "tools/support/process.h"
#include "tools/support/report.h"

namespace ferry::tools {
namespace {

constexpr auto kServerStarts = std::chrono::seconds(10);

// The options as they were given.
struct PerfFlags {
  PerfJob job;
  std::vector<std::string> ops{"write"};
  std::vector<std::string> sizes{"64MiB"};
  std::string block_size = "0";
  std::string memory = "host";
  std::string peer_memory;
  std::string deadline = "60s";

  std::string host = "127.0.0.1";  // to connect to, with or without a port
  std::string listen;
  std::optional<int> gpu;
  std::optional<std::uint16_t> port;
  std::string wait;
  std::vector<std::string> settings;
};

void DeclareBothSides(CLI::App* app, PerfFlags* flags, Invocation* invocation) {
  app->add_option("--wait", flags->wait,
                  "block (default) or spin: poll while waiting; give it to both sides")
      ->check(CLI::IsMember({"block", "spin"}));
  DeclarePeerSettings(app, &flags->settings);
  DeclareProviderSettings(app, &flags->settings);
  DeclareJson(app, invocation);
}

void DeclarePort(CLI::App* app, PerfFlags* flags) {
  app->add_option("--port", flags->port, fmt::format("Port of the server; default {}", kPerfPort))
      ->type_name("P");
}

// The parser takes -1 for the largest number there is.
CLI::Validator NotNegative() { return CLI::Validator(CLI::NonNegativeNumber).description(""); }

void DeclareMeasurement(CLI::App* app, PerfFlags* flags) {
  app->add_option("--op", flags->ops, "write, read or send; a list, or repeated")
      ->capture_default_str()
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("OP");
  app->add_option("--memory", flags->memory, fmt::format("Memory of this side: {}", kMemoryForms))
      ->capture_default_str()
      ->type_name("KIND");
  app->add_option(
         "--peer-memory", flags->peer_memory,
         "Memory of the server; default: as --memory, in loopback the next GPU if there is one")
      ->type_name("KIND");
  app->add_option("--size", flags->sizes, "Bytes of an operation, like 64MiB; a list")
      ->envname(tcpx::kUcclPerfSize)
      ->capture_default_str()
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("SIZE");
  app->add_option("--block-size", flags->block_size,
                  "0: contiguous; else both sides in blocks of this size, shuffled")
      ->capture_default_str()
      ->type_name("SIZE");
  app->add_option("--iters", flags->job.iterations,
                  "Operations in a round; 0: as many as take half a second, at least 5")
      ->envname(tcpx::kUcclPerfIterations)
      ->capture_default_str()
      ->check(NotNegative())
      ->type_name("N");
  app->add_option("--warmup", flags->job.warmup, "Operations before each timed part")
      ->capture_default_str()
      ->check(NotNegative())
      ->type_name("N");
  app->add_option("--depth", flags->job.depth, "Operations in flight")
      ->capture_default_str()
      ->check(NotNegative())
      ->type_name("N");
  app->add_option("--rounds", flags->job.rounds,
                  "Rounds, each of the floor and of ferry; results are medians over them")
      ->capture_default_str()
      ->check(NotNegative())
      ->type_name("N");
  app->add_flag("--verify,!--no-verify", flags->job.verify,
                "Check, after each round, the bytes of its last operation and of some others "
                "(default)");
  app->add_flag("!--no-floor", flags->job.floor, "Do not measure the plain-socket floor");
  app->add_flag(
      "--crc", flags->job.crc,
      "Also measure writes and reads with a CRC32C for every slice, in alternating rounds");
  app->add_option("--trace", flags->job.trace,
                  "Write a timeline of one more operation of each case, as seen by this side, for "
                  "Perfetto")
      ->type_name("FILE");
  app->add_option("--deadline", flags->deadline, "Time limit for each row of the result")
      ->capture_default_str()
      ->type_name("TIME");
}

Error Unusable(const char* option, const std::string& text, const char* remedy) {
  return Error(Code::kInvalidArgument,
               fmt::format("{} {} cannot be used; {}", option, text, remedy));
}

Result<Config> ConfigOf(const PerfFlags& flags) {
  FERRY_TRY_ASSIGN(Config config, LoadConfig(flags.settings));
  if (flags.wait == "spin") config.spin = std::chrono::seconds(1);
  if (flags.wait == "block") config.spin = microseconds(0);
  FERRY_TRY(config.Validate());
  return config;
}

Result<PerfCase> CaseOf(Op op, const std::string& size, const std::string& block_size) {
  PerfCase one{.op = op};
  FERRY_TRY_ASSIGN(one.size, ParseSize(size));
  if (one.size == 0) return Unusable("--size", size, "give at least 1 byte");
  if (op == Op::kSend) return one;  // a message is contiguous
  FERRY_TRY_ASSIGN(one.block_size, ParseSize(block_size));
  if (one.block_size > one.size) {
    return Unusable("--block-size", block_size, "it is larger than --size");
  }
  FERRY_TRY(CheckBlocks(one));
  return one;
}

Result<std::vector<PerfCase>> CasesOf(const PerfFlags& flags) {
  std::vector<PerfCase> cases;
  for (const std::string& op_text : flags.ops) {
    FERRY_TRY_ASSIGN(const Op op, ParseOp(op_text));
    for (const std::string& size : flags.sizes) {
      FERRY_TRY_ASSIGN(const PerfCase one, CaseOf(op, size, flags.block_size));
      cases.push_back(one);
    }
  }
  return cases;
}

Result<PerfJob> JobOf(const PerfFlags& flags, bool json) {
  PerfJob job = flags.job;
  FERRY_TRY_ASSIGN(job.memory, MemoryChoice::Parse(flags.memory));
  job.peer_memory = job.memory;
  if (!flags.peer_memory.empty()) {
    FERRY_TRY_ASSIGN(job.peer_memory, MemoryChoice::Parse(flags.peer_memory));
  }
  job.json = json;
  if (job.depth == 0 || job.depth > kMaxDepth) {
    return Unusable("--depth", std::to_string(job.depth), "give 1 to 65536");
  }
  if (job.rounds == 0) return Unusable("--rounds", "0", "give at least 1");
  FERRY_TRY_ASSIGN(job.cases, CasesOf(flags));
  FERRY_TRY_ASSIGN(job.config, ConfigOf(flags));
  FERRY_TRY_ASSIGN(job.deadline, ParseDuration(flags.deadline));
  if (job.deadline.count() <= 0)
    return Unusable("--deadline", flags.deadline, "give a time above 0");
  return job;
}

Status StartPerfServer(const PerfFlags& flags, bool json) {
  PerfServerJob job;
  job.json = json;
  job.gpu.ordinal = flags.gpu.value_or(job.gpu.ordinal);
  FERRY_TRY_ASSIGN(job.config, ConfigOf(flags));
  Config& config = job.config;
  if (!flags.listen.empty()) FERRY_TRY(config.Set("listen_host", flags.listen, "--listen"));
  job.floor_config = config;
  // The server itself takes the only port of the range.
  if (config.port_first == config.port_last) {
    // The range has no second port for the floor.
    job.floor_config.port_first = job.floor_config.port_last = 0;
  }
  if (flags.port || config.port_first == 0) {
    config.port_first = config.port_last = flags.port.value_or(kPerfPort);
  }
  return RunPerfServer(job);
}

Status StartPerfClient(const PerfFlags& flags, bool json) {
  FERRY_TRY_ASSIGN(const PerfJob job, JobOf(flags, json));
  FERRY_TRY_ASSIGN(const net::Address address,
                   net::ParseAddress(flags.host, flags.port.value_or(kPerfPort)));
  return RunPerfClient(job, address.ToString());
}

Status RunLoopback(const PerfFlags& flags, bool json) {
  FERRY_TRY_ASSIGN(PerfJob job, JobOf(flags, json));
  if (!job.memory.is_host() && flags.peer_memory.empty()) {
    FERRY_TRY_ASSIGN(const cuda::DeviceApi* const devices, cuda::OpenDevices(job.config));
    // Two processes of one machine have different GPUs where there are two.
    job.peer_memory.ordinal = (job.memory.ordinal + 1) % devices->count();
  }
  const auto port = std::to_string(flags.port.value_or(0));
  // The end of the server's only client needs no log line, but what a plugin fails in is told on
  // its own side only.
  const char* const level = job.config.provider == "tcp" ? "log_level=error" : "log_level=warn";
  // A process of its own, because the two sides would share loops and CPU time in one.
  std::vector<std::string> arguments{"perf",   "server", "--json", "--listen", flags.host,
                                     "--port", port,     "--set",  level};
  for (const std::string& setting : flags.settings) {
    arguments.insert(arguments.end(), {"--set", setting});
  }
  if (!flags.wait.empty()) arguments.insert(arguments.end(), {"--wait", flags.wait});
  if (!job.peer_memory.is_host() && job.config.provider != "tcp") {
    arguments.insert(arguments.end(), {"--gpu", std::to_string(job.peer_memory.ordinal)});
  }
  FERRY_TRY_ASSIGN(const ServerProcess server,
                   ServerProcess::Start(arguments, Deadline::After(kServerStarts)));
  return RunPerfClient(job, net::Address{flags.host, server.port()}.ToString());
}

// The action of a side's subcommand.
using Side = Status (*)(const PerfFlags& flags, bool json);

CLI::App* AddSide(CLI::App* perf, const char* name, const char* summary, Invocation* invocation,
                  const std::pair<PerfFlags*, Side>& action) {
  CLI::App* const app = perf->add_subcommand(name, summary);
  app->callback([invocation, action] {
    invocation->run = [invocation, action] {
      return action.second(*action.first, invocation->json);
    };
  });
  return app;
}

}  // namespace

void DeclarePerf(CLI::App* app, Invocation* invocation) {
  app->require_subcommand(1);
  // Live as long as the program: the parser writes into them, the chosen subcommand reads its own.
  // The parser also gives the variables of options to the sides that were not chosen. Each
  // declaration begins with the defaults.
  static std::array<PerfFlags, 3> sides;
  sides = {};
  auto& [of_server, of_client, of_loopback] = sides;

  CLI::App* const server = AddSide(app, "server", "Wait for clients and measure with them",
                                   invocation, {&of_server, StartPerfServer});
  server->add_option("--listen", of_server.listen, "Address to listen on; default: all")
      ->type_name("HOST");
  server
      ->add_option("--gpu", of_server.gpu,
                   "GPU that lanes over a network plugin are for; default: the first. Memory of "
                   "others goes by way of the host")
      ->check(NotNegative())
      ->type_name("N");
  DeclarePort(server, &of_server);
  DeclareBothSides(server, &of_server, invocation);

  CLI::App* const client =
      AddSide(app, "client", "Measure against a server", invocation, {&of_client, StartPerfClient});
  client->add_option("host", of_client.host, "The server")->type_name("HOST[:PORT]")->required();
  DeclarePort(client, &of_client);
  DeclareMeasurement(client, &of_client);
  DeclareBothSides(client, &of_client, invocation);

  CLI::App* const loopback =
      AddSide(app, "loopback", "Measure between two processes on this machine", invocation,
              {&of_loopback, RunLoopback});
  loopback->add_option("--host", of_loopback.host, "Loopback address, 127.0.0.1 or ::1")
      ->capture_default_str()
      ->type_name("HOST");
  loopback->add_option("--port", of_loopback.port, "Port of the server; default: any free one")
      ->type_name("P");
  DeclareMeasurement(loopback, &of_loopback);
  DeclareBothSides(loopback, &of_loopback, invocation);
}

}  // namespace ferry::tools
