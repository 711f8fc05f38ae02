// Command line of `ferry kernel-bench`.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "tools/bench/kernels/kernels.h"
#include "tools/support/command.h"
#include "tools/support/report.h"

namespace ferry::tools {
namespace {

struct KernelBenchWords {
  KernelBenchJob job;
  std::string device = "cuda:0";
  std::vector<std::string> settings;
};

// "cuda:1", or only its number.
Result<int> OrdinalOf(const std::string& device) {
  constexpr std::string_view kPrefix = "cuda:";
  std::string_view number = device;
  if (number.substr(0, kPrefix.size()) == kPrefix) number.remove_prefix(kPrefix.size());
  int ordinal = -1;
  const auto [end, failure] =
      std::from_chars(number.data(), number.data() + number.size(), ordinal);
  if (failure == std::errc() && end == number.data() + number.size() && ordinal >= 0) {
    return ordinal;
  }
  return Error(Code::kInvalidArgument,
               fmt::format("--device {} does not name a GPU; write cuda:N", device));
}

// Past all destructors and the driver's own end, which wait for a kernel that may never end.
[[noreturn]] void LeaveAtOnce(const Invocation& invocation, const Error& error) {
  PrintError(invocation, error);
  std::fflush(nullptr);
  std::_Exit(ExitCodeOf(error.code()));
}

}  // namespace

void DeclareKernelBench(CLI::App* app, Invocation* invocation) {
  // Lives as long as the program: the parser writes into it, the subcommand reads it. Each
  // declaration begins with the defaults.
  static KernelBenchWords words;
  words = KernelBenchWords();
  KernelBenchJob& job = words.job;
  app->add_option("--op", job.ops, "Ops to measure, by name; a list, or repeated (default: all)")
      ->delimiter(',')
      ->type_name("NAME");
  app->add_option("--device", words.device, "GPU, by CUDA's number")
      ->capture_default_str()
      ->type_name("cuda:N");
  app->add_option("--seconds", job.seconds,
                  "Time that the samples of a row take; a row has at "
                  "least 20, unless they take 10 times as long")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 60.0))
      ->type_name("S");
  app->add_flag("--list", job.list, "List the rows without measuring");
  // Sizes for tests, which have no GPU.
  app->add_flag("--tiny", job.tiny)->group("");
  DeclareJson(app, invocation);
  DeclareSettings(app, &words.settings);
  app->callback([invocation] {
    words.job.json = invocation->json;
    invocation->run = [invocation]() -> Status {
      FERRY_TRY_ASSIGN(words.job.config, LoadConfig(words.settings));
      FERRY_TRY_ASSIGN(words.job.ordinal, OrdinalOf(words.device));
      Status done = RunKernelBench(words.job);
      if (!done && done.error().code() == Code::kTimedOut) LeaveAtOnce(*invocation, done.error());
      return done;
    };
  });
}

}  // namespace ferry::tools
