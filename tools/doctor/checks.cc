// Runs the checks of `ferry doctor` in report order.

#include "tools/doctor/checks.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <sstream>

#include "tools/doctor/nccl.h"
#include "tools/doctor/nixl.h"
#include "tools/doctor/tcpx/plugin_file.h"
#include "tools/doctor/tcpx/tcpx.h"

namespace ferry::tools {
namespace {

// Whatever the network does, a run of the doctor ends by then, give or take a scheduler's delay.
constexpr auto kTimeLimit = std::chrono::seconds(10);
constexpr auto kResolve = std::chrono::seconds(3);
constexpr auto kDial = std::chrono::seconds(3);
constexpr auto kCommands = std::chrono::seconds(3);
constexpr auto kTryConnect = std::chrono::seconds(3);
constexpr std::size_t kMaxCores = 65536;

void Append(std::vector<Check> more, std::vector<Check>* checks) {
  for (Check& check : more) checks->push_back(std::move(check));
}

}  // namespace

// Order matters: CheckRoute() fills in the addresses and interfaces that later checks look at, and
// CheckReach() whether anything answers. Each part has a limit of its own, and all have one
// together.
std::vector<Check> Examine(Context context) {
  const Deadline end = Deadline::After(kTimeLimit);
  const auto within = [end](auto wait) { return Deadline::After(wait).Sooner(end); };
  std::vector<Check> checks{CheckSecret(context)};
  Append(CheckRoute(&context, within(kResolve)), &checks);
  if (auto range = TcpxPortRange(context.system, context.tcpx)) {
    context.ranges.push_back(*std::move(range));
  }
  Append(CheckReach(&context, within(kDial)), &checks);
  checks.push_back(CheckPeer(context, within(kTryConnect)));
  for (const auto check :
       {CheckCongestionControl, CheckSocketBuffers, CheckTcpOptions, CheckSlowStart, CheckVmsplice,
        CheckCores, CheckNuma, CheckLinks, CheckMemory, CheckSwap, CheckHugePages,
        CheckLockedMemory, CheckOpenFiles, CheckClock}) {
    checks.push_back(check(context));
  }
  Append(CheckTcpx(context.system, context.tcpx, checks, within(kCommands)), &checks);
  if (auto peer = CheckTcpxPeer(context)) checks.push_back(*std::move(peer));
  Append(CheckNccl(context.system, context.config, context.nccl, within(kCommands)), &checks);
  Append(CheckNixl(context.system, context.config, context.nixl, within(kCommands)), &checks);
  return checks;
}

std::optional<std::uint64_t> NumberIn(std::string_view text) {
  const auto words = WordsOf(text);
  if (words.size() != 1) return std::nullopt;
  const std::string& word = words.front();
  std::uint64_t number = 0;
  const char* const end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data(), end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

std::vector<std::string> WordsOf(std::string_view text) {
  std::istringstream stream{std::string(text)};
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

Result<std::uint64_t> ReadNumber(SystemView* system, const std::string& path) {
  FERRY_TRY_ASSIGN(const std::string text, system->ReadFile(path));
  if (const auto number = NumberIn(text)) return *number;
  return Error(Code::kCorrupt,
               fmt::format("{} holds \"{}\", which is not a number", path, text.substr(0, 60)));
}

std::string SysctlPath(std::string_view name) {
  std::string path = "/proc/sys/" + std::string(name);
  std::replace(path.begin() + sizeof "/proc/sys/" - 1, path.end(), '.', '/');
  return path;
}

Check Skipped(std::string id, const Error& error) {
  return {std::move(id), Verdict::kSkipped, error.message(), ""};
}

// Lines as proc_pid_net(5) has them: "   0: 0100007F:1D2F 00000000:0000 0A ...".
std::set<int> PortsInUse(SystemView* system) {
  constexpr std::string_view kListening = "0A";
  std::set<int> ports;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    const auto text = system->ReadFile(table);
    for (const std::string& line : SplitAt(text ? *text : std::string(), '\n')) {
      const auto words = WordsOf(line);
      if (words.size() < 4 || words[3] != kListening) continue;
      const std::size_t colon = words[1].rfind(':');
      if (colon == std::string::npos) continue;
      int port = 0;
      const char* const end = words[1].data() + words[1].size();
      if (std::from_chars(words[1].data() + colon + 1, end, port, 16).ptr == end) {
        ports.insert(port);
      }
    }
  }
  return ports;
}

std::vector<int> CoreList(std::string_view text) {
  std::vector<int> cores;
  std::istringstream parts{std::string(text)};
  for (std::string part; std::getline(parts, part, ',');) {
    const auto dash = part.find('-');
    const auto first = NumberIn(part.substr(0, dash));
    const auto last = dash == std::string::npos ? first : NumberIn(part.substr(dash + 1));
    // As in /sys: "0-3,8". Text of another form is no list at all rather than a part of one.
    if (!first || !last || *last < *first || *last >= kMaxCores) return {};
    for (std::uint64_t core = *first; core <= *last; ++core) {
      cores.push_back(static_cast<int>(core));
    }
  }
  std::sort(cores.begin(), cores.end());
  return cores;
}

}  // namespace ferry::tools
