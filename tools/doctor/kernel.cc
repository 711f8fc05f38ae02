// Doctor checks of kernel settings that affect TCP connections.
#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "ferry/core/units.h"
#include "tools/doctor/checks.h"

namespace ferry::tools {
namespace {

constexpr const char* kDefaultAlgorithm = "net.ipv4.tcp_congestion_control";
constexpr const char* kAllowedAlgorithms = "net.ipv4.tcp_allowed_congestion_control";
constexpr const char* kLoadedAlgorithms = "net.ipv4.tcp_available_congestion_control";
// From here on BBR's timers cost nothing that shows (docs/gotchas.md).
constexpr std::size_t kCoresForBbr = 32;
// Both sides' buffers of one lane hold this much before they hold up a LAN of 100 Gbit/s.
constexpr std::uint64_t kMinBuffer = 4 * kMiB;
constexpr std::uint64_t kWantedBuffer = 64 * kMiB;
constexpr std::uint64_t kMinPipe = 256 * kKiB;  // for zero-copy sends

struct Algorithms {
  std::string usual;                 // the kernel's default
  std::vector<std::string> allowed;  // to everybody
  std::vector<std::string> loaded;
};

bool Has(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::string Joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

// The default must be known; a list that cannot be read counts as empty.
Result<Algorithms> ReadAlgorithms(SystemView* system) {
  Algorithms algorithms;
  FERRY_TRY_ASSIGN(const std::string usual, system->ReadFile(SysctlPath(kDefaultAlgorithm)));
  const auto words = WordsOf(usual);
  if (words.size() != 1) {
    return Error(Code::kCorrupt, fmt::format("{} is \"{}\", which is not a name", kDefaultAlgorithm,
                                             usual.substr(0, 60)));
  }
  algorithms.usual = words.front();
  if (const auto text = system->ReadFile(SysctlPath(kAllowedAlgorithms))) {
    algorithms.allowed = WordsOf(*text);
  }
  if (const auto text = system->ReadFile(SysctlPath(kLoadedAlgorithms))) {
    algorithms.loaded = WordsOf(*text);
  }
  return algorithms;
}

// Asking for what is not loaded would load it.
bool MayUse(SystemView* system, const Algorithms& algorithms, const std::string& name) {
  return Has(algorithms.loaded, name) && system->MayUse(name);
}

// The setting is a whole list: what it has now stays.
std::string CommandToAllow(const Algorithms& algorithms, const std::string& name) {
  std::vector<std::string> allowed = algorithms.allowed;
  if (!Has(allowed, name)) allowed.push_back(name);
  const std::string load =
      Has(algorithms.loaded, name) ? "" : fmt::format("modprobe tcp_{} && ", name);
  return fmt::format("{}sysctl -w {}='{}'", load, kAllowedAlgorithms, Joined(allowed));
}

// Checks a name given by FERRY_CONGESTION_CONTROL.
Check CheckChosen(const Context& context, const Algorithms& algorithms, Check check) {
  const std::string& chosen = context.config.congestion_control.name;
  check.evidence += fmt::format("; FERRY_CONGESTION_CONTROL={}", chosen);
  if (MayUse(context.system, algorithms, chosen)) return check;
  check.verdict = Verdict::kProblem;
  check.evidence += Has(algorithms.loaded, chosen)
                        ? ", which this process may not choose: no connection can be made"
                        : ", which the kernel has not loaded: no connection can be made";
  check.fix = CommandToAllow(algorithms, chosen);
  return check;
}

Check CheckAuto(const Context& context, const Algorithms& algorithms, Check check) {
  const bool cubic = MayUse(context.system, algorithms, "cubic");
  if (cubic || MayUse(context.system, algorithms, "reno")) {
    check.verdict = Verdict::kNote;
    check.evidence += fmt::format(
        "; FERRY_CONGESTION_CONTROL=auto puts {} in its place towards near peers, other programs "
        "keep BBR, which halves the rate over loopback and a LAN where cores are few",
        cubic ? "cubic" : "reno (cubic is not allowed)");
    check.fix = cubic ? fmt::format("sysctl -w {}=cubic", kDefaultAlgorithm)
                      : CommandToAllow(algorithms, "cubic");
    return check;
  }
  check.verdict = Verdict::kWarning;
  check.evidence +=
      "; BBR halves the rate to near peers where cores are few, and this process may choose "
      "neither cubic nor reno in its place";
  check.fix = CommandToAllow(algorithms, "cubic");
  return check;
}

Result<std::uint64_t> ThirdNumber(SystemView* system, const char* name) {
  FERRY_TRY_ASSIGN(const std::string text, system->ReadFile(SysctlPath(name)));
  const auto words = WordsOf(text);
  const auto largest = words.size() == 3 ? NumberIn(words[2]) : std::nullopt;
  if (largest) return *largest;
  return Error(Code::kCorrupt,
               fmt::format("{} is \"{}\", not three numbers", name, text.substr(0, 60)));
}

// The fastest of the interfaces, bytes per second; 0: unknown.
double LinkRate(const Context& context) {
  double fastest = 0;
  for (const std::string& interface : context.interfaces) {
    const auto megabits =
        ReadNumber(context.system, fmt::format("/sys/class/net/{}/speed", interface));
    // Interfaces without a speed say 4294967295.
    if (megabits && *megabits < 10'000'000) {
      fastest = std::max(fastest, static_cast<double>(*megabits) * 1e6 / 8);
    }
  }
  return fastest;
}

// Twice the bytes in flight in a round trip, because the kernel also counts its own overhead.
std::uint64_t WantedBuffer(const Context& context) {
  const double in_flight = LinkRate(context) * context.rtt_us * 1e-6;
  return std::max(kMinBuffer, static_cast<std::uint64_t>(2 * in_flight));
}

// A fixed size that a setting asks for and the kernel cuts down.
std::string CutDown(const char* variable, std::uint64_t asked, const char* name,
                    std::uint64_t most) {
  if (asked <= most) return "";
  return fmt::format("; {} asks for {}, and the kernel gives {} at most ({})", variable,
                     FormatSize(asked), FormatSize(most), name);
}

std::string CommandOf(const std::string& assignments) { return "sysctl -w " + assignments; }

}  // namespace

Check CheckCongestionControl(const Context& context) {
  Check check{"congestion_control", Verdict::kOk, "", ""};
  const auto algorithms = ReadAlgorithms(context.system);
  if (!algorithms) return Skipped(check.id, algorithms.error());
  check.evidence = fmt::format("default {}, allowed {}, loaded {}", algorithms->usual,
                               algorithms->allowed.empty() ? "-" : Joined(algorithms->allowed),
                               algorithms->loaded.empty() ? "-" : Joined(algorithms->loaded));
  using Choice = CongestionControl::Choice;
  const Choice choice = context.config.congestion_control.choice;
  if (choice == Choice::kNamed) return CheckChosen(context, *algorithms, check);
  if (algorithms->usual.rfind("bbr", 0) != 0) return check;
  const std::size_t cores = context.system->Cores().size();
  if (cores >= kCoresForBbr) {
    check.verdict = Verdict::kNote;
    check.evidence += fmt::format("; BBR costs little with {} cores", cores);
    return check;
  }
  if (choice == Choice::kAuto) return CheckAuto(context, *algorithms, check);
  check.verdict = Verdict::kWarning;
  check.evidence +=
      "; FERRY_CONGESTION_CONTROL=system keeps BBR, which halves the rate to near peers where "
      "cores are few";
  check.fix = fmt::format("sysctl -w {}=cubic", kDefaultAlgorithm);
  return check;
}

Check CheckSocketBuffers(const Context& context) {
  const std::string id = "socket_buffers";
  const auto receive = ThirdNumber(context.system, "net.ipv4.tcp_rmem");
  if (!receive) return Skipped(id, receive.error());
  const auto send = ThirdNumber(context.system, "net.ipv4.tcp_wmem");
  if (!send) return Skipped(id, send.error());
  const std::uint64_t wanted = WantedBuffer(context);
  Check check{id, Verdict::kOk,
              fmt::format("autotuning up to {} for receiving, {} for sending; {} recommended",
                          FormatSize(*receive), FormatSize(*send), FormatSize(wanted)),
              ""};
  const std::uint64_t target = std::max(kWantedBuffer, wanted);
  std::string assignments;
  const auto lift = [&](const std::string& assignment) {
    check.verdict = Verdict::kWarning;
    assignments += (assignments.empty() ? "" : " ") + assignment;
  };
  if (*receive < wanted) lift(fmt::format("net.ipv4.tcp_rmem='4096 131072 {}'", target));
  if (*send < wanted) lift(fmt::format("net.ipv4.tcp_wmem='4096 65536 {}'", target));
  struct Fixed {
    const char* variable;
    std::uint64_t asked;
    const char* name;
  };
  for (const Fixed& fixed :
       {Fixed{"FERRY_RECV_BUFFER_BYTES", context.config.recv_buffer_bytes, "net.core.rmem_max"},
        Fixed{"FERRY_SEND_BUFFER_BYTES", context.config.send_buffer_bytes, "net.core.wmem_max"}}) {
    const auto most = ReadNumber(context.system, SysctlPath(fixed.name));
    if (!most) continue;  // namespaces other than the first have no net.core.*mem_max
    check.evidence += fmt::format("; {} {}", fixed.name, FormatSize(*most));
    const std::string cut = CutDown(fixed.variable, fixed.asked, fixed.name, *most);
    check.evidence += cut;
    if (!cut.empty()) lift(fmt::format("{}={}", fixed.name, fixed.asked));
  }
  if (!assignments.empty()) check.fix = CommandOf(assignments);
  return check;
}

Check CheckTcpOptions(const Context& context) {
  struct Option {
    const char* name;
    Verdict when_off;
    const char* effect;
  };
  constexpr std::array kOptions = {
      Option{"net.ipv4.tcp_window_scaling", Verdict::kWarning, "at most 64 KiB in flight"},
      Option{"net.ipv4.tcp_sack", Verdict::kWarning, "one lost packet makes TCP retransmit many"},
      Option{"net.ipv4.tcp_timestamps", Verdict::kNote,
             "round trips are measured more coarsely, and wrapped sequence numbers go undetected "
             "(RFC 7323)"},
  };
  Check check{"tcp_options", Verdict::kOk, "", ""};
  std::string assignments;
  for (const Option& option : kOptions) {
    const auto value = ReadNumber(context.system, SysctlPath(option.name));
    if (!value) return Skipped(check.id, value.error());
    check.evidence +=
        fmt::format("{}{} {}", check.evidence.empty() ? "" : "; ", option.name, *value);
    if (*value != 0) continue;
    check.verdict = std::max(check.verdict, option.when_off);
    check.evidence += fmt::format(": {}", option.effect);
    assignments += fmt::format("{}{}=1", assignments.empty() ? "" : " ", option.name);
  }
  if (!assignments.empty()) check.fix = CommandOf(assignments);
  return check;
}

Check CheckSlowStart(const Context& context) {
  constexpr const char* kName = "net.ipv4.tcp_slow_start_after_idle";
  Check check{"slow_start_after_idle", Verdict::kOk, "", ""};
  const auto value = ReadNumber(context.system, SysctlPath(kName));
  if (!value) return Skipped(check.id, value.error());
  check.evidence = fmt::format("{} {}", kName, *value);
  if (*value == 0) return check;
  check.verdict = Verdict::kNote;
  check.evidence +=
      ": a lane that was idle restarts in slow start, which slows bursts over long "
      "round trips";
  check.fix = fmt::format("sysctl -w {}=0", kName);
  return check;
}

Check CheckVmsplice(const Context& context) {
  constexpr const char* kName = "fs.pipe-max-size";
  Check check{"vmsplice", Verdict::kOk, "", ""};
  if (context.config.zero_copy_send == AutoOnOff::kOff) {
    check.evidence = "FERRY_ZERO_COPY_SEND=off: payloads are copied into the socket";
    return check;
  }
  const auto most = ReadNumber(context.system, SysctlPath(kName));
  if (most) check.evidence = fmt::format("{} {}; ", kName, FormatSize(*most));
  const Status vmsplice = context.system->ProbeVmsplice();
  if (vmsplice) {
    check.evidence += "zero-copy sends are available: pages can be spliced into a pipe";
    return check;
  }
  check.verdict =
      context.config.zero_copy_send == AutoOnOff::kOn ? Verdict::kWarning : Verdict::kNote;
  check.evidence += vmsplice.error().message() + "; payloads are copied into the socket";
  if (most && *most < kMinPipe) check.fix = fmt::format("sysctl -w {}={}", kName, kMiB);
  return check;
}

}  // namespace ferry::tools
