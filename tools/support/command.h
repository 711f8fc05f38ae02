// Interface between main() and the subcommands: declarations, exit codes and common options.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/result.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the library's
class App;
}

namespace ferry::tools {

// Documented in `ferry --help`; scripts rely on them.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,
  kExitUsage = 2,
  kExitPeer = 3,
  kExitTimedOut = 4,
  kExitWarning = 5,  // `ferry doctor` only, as the next one
  kExitProblem = 6,
  kExitSignal = 128,  // and the signal's number
};
ExitCode ExitCodeOf(Code code) noexcept;

inline constexpr std::uint16_t kPerfPort = 7471;
inline constexpr std::uint16_t kTransferPort = 7472;

// The parsed command line; filled while it is parsed.
struct Invocation {
  std::string name = "ferry";  // with the subcommands, for messages
  bool json = false;
  std::function<Status()> run;
  ExitCode exit_code = kExitOk;  // where `run` ends well
};

// Options that several subcommands share. Every Declare function keeps its pointers until the
// program ends.
void DeclareJson(CLI::App* app, Invocation* invocation);
void DeclareSettings(CLI::App* app, std::vector<std::string>* assignments);
// DeclareSettings() plus named options for the settings of peers: secret and TLS.
void DeclarePeerSettings(CLI::App* app, std::vector<std::string>* assignments);
// Named options for the settings of providers: which one, its lanes, and how a plugin is driven.
// After DeclarePeerSettings(), whose --set would undo them.
void DeclareProviderSettings(CLI::App* app, std::vector<std::string>* assignments);
// The environment's settings, then the assignments "name=value", then with a plugin what the
// variables of UCCL's TCPX library say; sets up the log, too. Errors: kInvalidArgument.
Result<Config> LoadConfig(const std::vector<std::string>& assignments);

// Each adds the options and the action of one subcommand. What a later declaration parses replaces
// what an earlier one did.
void DeclarePerf(CLI::App* app, Invocation* invocation);
void DeclareTransfer(CLI::App* app, Invocation* invocation);
void DeclareInfo(CLI::App* app, Invocation* invocation);
void DeclareDoctor(CLI::App* app, Invocation* invocation);
void DeclareCopyBench(CLI::App* app, Invocation* invocation);
void DeclareKernelBench(CLI::App* app, Invocation* invocation);

struct Subcommand {
  const char* name;
  const char* summary;
  void (*declare)(CLI::App* app, Invocation* invocation);
};

// In the order of `ferry --help`.
inline constexpr Subcommand kSubcommands[] = {
    {"perf", "Measure bandwidth and latency between two processes", DeclarePerf},
    {"transfer", "Move one file or message and verify it at the receiver", DeclareTransfer},
    {"info", "Show version, machine and every setting", DeclareInfo},
    {"doctor", "Check what keeps this machine from moving tensors, and print how to fix it",
     DeclareDoctor},
    {"copy-bench", "Measure copies between host and GPU memory and within it, for each executor",
     DeclareCopyBench},
    {"kernel-bench", "Measure the inference kernels and compare them with copy bandwidth",
     DeclareKernelBench},
};

}  // namespace ferry::tools
