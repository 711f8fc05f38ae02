// GPUDirect-TCPX: its variables, and the kernel's settings that its users are told to make.
#include <fmt/core.h>
#include <linux/capability.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "tools/doctor/checks.h"
#include "tools/doctor/tcpx/tcpx.h"

namespace ferry::tools {
namespace {

constexpr const char* kChunkVariable = tcpx::kTcpxChunkVariable;
constexpr std::uint64_t kUsualChunk = 524288;
constexpr std::uint64_t kMaxChunk = 4194304;  // of the plugin's slices
constexpr const char* kWaitVariable = "NCCL_GPUDIRECTTCPX_PROGRAM_FLOW_STEERING_WAIT_MICROS";
constexpr std::uint64_t kDefaultWait = 5'000'000;  // us
constexpr std::uint64_t kUsualWait = 50'000;       // us
constexpr std::uint64_t kLongWait = 1'000'000;     // us
constexpr std::uint64_t kMaxDataSockets = 8;       // of data, of a connection

// Sockets with TCPX's options, where nothing is said: one for each of one thread.
// Values that are no number, or absurd, count as 1, as if they were not set.
std::uint64_t SocketsOf(const TcpxSetup& setup) {
  std::uint64_t product = 1;
  for (const char* name : {"NCCL_NSOCKS_PERTHREAD", "NCCL_SOCKET_NTHREADS"}) {
    const auto text = setup.Variable(name);
    const auto number = text ? NumberIn(*text) : std::nullopt;
    if (number && *number > 0 && *number <= 1024) product *= *number;
  }
  return product;
}

// Whether the process may lock memory without limit (capabilities(7)).
bool MayLock(SystemView* system) {
  const auto status = system->ReadFile("/proc/self/status");
  if (!status) return false;
  constexpr std::string_view kKey = "CapEff:";
  const auto at = status->find(kKey);
  if (at == std::string::npos) return false;
  const auto words = WordsOf(status->substr(at + kKey.size(), 40));
  if (words.empty()) return false;
  std::uint64_t mask = 0;
  const std::string& word = words.front();
  std::from_chars(word.data(), word.data() + word.size(), mask, 16);
  return (mask >> CAP_IPC_LOCK & 1) != 0;
}

struct WantedSysctl {
  const char* name;
  std::vector<std::uint64_t> values;
  bool more_is_fine;  // else they are to be these
};

std::string NumbersText(const std::vector<std::uint64_t>& numbers) {
  std::string text;
  for (const std::uint64_t number : numbers)
    text += fmt::format("{}{}", text.empty() ? "" : " ", number);
  return text;
}

// One command sets all that differ: the first appends "sysctl -w", the others only their settings.
void AddSysctl(const TcpxSetup& setup, const WantedSysctl& wanted, Check* check) {
  const auto text = setup.system->ReadFile(SysctlPath(wanted.name));
  if (!text) return check->Find(Verdict::kSkipped, "{}", text.error().message());
  std::vector<std::uint64_t> values;
  for (const std::string& word : WordsOf(*text)) values.push_back(NumberIn(word).value_or(0));
  std::vector<std::uint64_t> target = wanted.values;
  bool fine = values.size() == wanted.values.size();
  for (std::size_t i = 0; fine && i < values.size(); ++i) {
    fine = wanted.more_is_fine ? values[i] >= wanted.values[i] : values[i] == wanted.values[i];
  }
  // Larger values stay.
  for (std::size_t i = 0; wanted.more_is_fine && i < std::min(values.size(), target.size()); ++i) {
    target[i] = std::max(target[i], values[i]);
  }
  const std::string is = NumbersText(values);
  if (fine) return check->Find(Verdict::kOk, "{} {}", wanted.name, is);
  check->Find(Verdict::kWarning, "{} {}, {} recommended", wanted.name, is,
              NumbersText(wanted.values));
  const char* const quote = wanted.values.size() > 1 ? "'" : "";
  check->fix += fmt::format("{}{}={}{}{}", check->fix.empty() ? "sysctl -w " : " ", wanted.name,
                            quote, NumbersText(target), quote);
}

const Check* FindCheck(const std::vector<Check>& checks, const std::string& id) {
  const auto found =
      std::find_if(checks.begin(), checks.end(), [&](const Check& one) { return one.id == id; });
  return found == checks.end() ? nullptr : &*found;
}

}  // namespace

std::optional<std::uint64_t> TcpxChunkSize(const TcpxSetup& setup) {
  const auto text = setup.Variable(kChunkVariable);
  const auto number = text ? NumberIn(*text) : std::nullopt;
  if (!number || *number == 0) return std::nullopt;
  return number;
}

Check CheckTcpxChunkSize(const TcpxSetup& setup) {
  Check check{"tcpx_chunk_size", Verdict::kOk, "", ""};
  const auto text = setup.Variable(kChunkVariable);
  const auto chunk = TcpxChunkSize(setup);
  if (!chunk) {
    check.verdict = Verdict::kProblem;
    check.evidence = text ? fmt::format("{}={} is not a size above 0", kChunkVariable, *text)
                          : fmt::format("{} is not set", kChunkVariable);
    check.evidence += ": the plugin can send nothing";
  } else {
    check.evidence = fmt::format("{}={}", kChunkVariable, *chunk);
    if (*chunk > kMaxChunk) {
      check.Find(Verdict::kWarning, "more than the {} bytes of a slice of the plugin's", kMaxChunk);
    }
  }
  if (check.verdict != Verdict::kOk) {
    check.fix = fmt::format("export {}={}", kChunkVariable, kUsualChunk);
  }
  return check;
}

Check CheckTcpxSetupWait(const TcpxSetup& setup) {
  Check check{"tcpx_setup_wait", Verdict::kOk, "", ""};
  const auto text = setup.Variable(kWaitVariable);
  // The plugin uses its default for a value that is not a number.
  const std::uint64_t wait = (text ? NumberIn(*text) : std::nullopt).value_or(kDefaultWait);
  check.evidence = fmt::format("each accept waits {:.2f} s for its flow rules ({} {})",
                               static_cast<double>(wait) / 1e6, kWaitVariable,
                               text ? "is " + *text : std::string("is not set"));
  if (wait < kLongWait) return check;
  check.verdict = Verdict::kNote;
  check.fix = fmt::format("export {}={}", kWaitVariable, kUsualWait);
  return check;
}

// Variables whose default is right: they are a finding only where they are set to something else.
Check CheckTcpxVariables(const TcpxSetup& setup) {
  struct Fixed {
    const char* name;
    const char* wanted;
    Verdict otherwise;
    const char* effect;
  };
  constexpr std::array kFixed = {
      Fixed{"NCCL_GPUDIRECTTCPX_SOCKET_ENABLE", "1", Verdict::kProblem,
            "the plugin does not start"},
      Fixed{"NCCL_GPUDIRECTTCPX_FLOW_STEERING_STRATEGY", "3", Verdict::kProblem,
            "the plugin does not start"},
      Fixed{"NCCL_USE_DMA_BUF", "1", Verdict::kProblem, "GPU memory cannot be registered"},
      Fixed{"NCCL_INLINE_THRESHOLD", "0", Verdict::kWarning,
            "small messages go with the control records, from where no GPU receives them"},
  };
  Check check{"tcpx_variables", Verdict::kOk, "", ""};
  for (const Fixed& fixed : kFixed) {
    const auto value = setup.Variable(fixed.name);
    if (!value || *value == fixed.wanted) continue;
    check.Find(fixed.otherwise, "{}={}: {}", fixed.name, *value, fixed.effect);
    check.Fix("unset {}", fixed.name);
  }
  const std::uint64_t sockets = SocketsOf(setup);
  check.Find(Verdict::kOk, "{} data socket{} a connection", sockets, sockets == 1 ? "" : "s");
  if (sockets > kMaxDataSockets) {
    check.Find(Verdict::kWarning, "the plugin takes {} of them", kMaxDataSockets);
    check.Fix("export NCCL_NSOCKS_PERTHREAD=4 NCCL_SOCKET_NTHREADS=1");
  }
  return check;
}

Check CheckTcpxSysctls(const TcpxSetup& setup) {
  Check check{"tcpx_sysctls", Verdict::kOk, "", ""};
  for (const WantedSysctl& wanted :
       {WantedSysctl{"net.ipv4.tcp_rmem", {4096, 1048576, 15728640}, true},
        WantedSysctl{"net.ipv4.tcp_wmem", {4096, 1048576, 67108864}, true},
        WantedSysctl{"net.ipv4.tcp_mtu_probing", {0}, false},
        WantedSysctl{"net.ipv4.tcp_slow_start_after_idle", {0}, false}}) {
    AddSysctl(setup, wanted, &check);
  }
  return check;
}

Check CheckTcpxLimits(const TcpxSetup& setup, const std::vector<Check>& others) {
  Check check{"tcpx_limits", Verdict::kOk, "", ""};
  for (const char* id : {"locked_memory", "congestion_control"}) {
    const Check* const other = FindCheck(others, id);
    if (other == nullptr) continue;
    check.Find(other->verdict, "see {} ({})", id, VerdictName(other->verdict));
  }
  const Check* const locked = FindCheck(others, "locked_memory");
  if (locked == nullptr || locked->verdict == Verdict::kOk) return check;
  if (MayLock(setup.system)) {
    check.Find(Verdict::kOk, "CAP_IPC_LOCK makes up for the limit of locked memory");
    return check;
  }
  check.Find(Verdict::kWarning,
             "sends are from locked memory, and this process has no CAP_IPC_LOCK");
  check.fix = locked->fix;
  return check;
}

}  // namespace ferry::tools
