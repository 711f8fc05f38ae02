// Implements the doctor's view of the real machine: routes, connects, limits and clock.

#include "tools/doctor/machine.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timex.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>

#include "ferry/net/resolve.h"
#include "ferry/net/tcp/splice_pipe.h"
#include "ferry/transfer/endpoint.h"

namespace ferry::tools {
namespace {

constexpr std::size_t kMaxOfFile = 1 << 20;

std::uint64_t CountOf(rlim_t limit) { return limit == RLIM_INFINITY ? kUnlimited : limit; }

class Machine final : public SystemView {
 public:
  Result<std::string> ReadFile(const std::string& path) override;
  Result<PathState> StateOf(const std::string& path) override { return net::FindPathState(path); }
  Result<std::vector<std::string>> List(const std::string& folder) override {
    return net::ListFolder(folder);
  }
  Result<std::string> RealPath(const std::string& path) override;
  std::map<std::string, std::string> Environment() override { return net::ReadEnvironment(); }
  Result<CommandEnd> Run(const std::vector<std::string>& arguments, Deadline deadline) override {
    return RunCommand(arguments, deadline);
  }
  Result<std::vector<net::Address>> Resolve(const net::Address& address,
                                            Deadline deadline) override {
    return net::Resolve(address, deadline);
  }
  Result<Route> RouteTo(const net::Address& numeric) override { return FindRoute(numeric); }
  std::vector<Dialed> Dial(const std::vector<net::Address>& numeric, Deadline deadline) override {
    return DialAll(numeric, deadline);
  }
  std::vector<net::InterfaceAddress> Addresses() override {
    return net::ReadInterfaces().value_or(std::vector<net::InterfaceAddress>());
  }
  bool MayUse(const std::string& congestion_control) override;
  Result<bool> TakesTokens(int option) override { return net::ProbeTokenOption(option); }
  Result<NicSwitches> SwitchesOf(const std::string& interface) override {
    return net::AskNic(interface);
  }
  Limit LimitOf(int resource) override;
  std::vector<int> Cores() override;
  Result<ClockState> Clock() override;
  Status ProbeVmsplice() override;
  Result<transfer::ConnectionInfo> TryConnect(const Config& config,
                                              const std::vector<net::Address>& numeric,
                                              Deadline deadline) override;
};

Result<std::string> Machine::ReadFile(const std::string& path) {
  // Without waiting: somebody may have put a pipe there.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd) return ErrnoError(path, errno);
  std::string text;
  while (text.size() < kMaxOfFile) {
    std::array<char, 4096> part{};
    const ssize_t got = ::read(fd.get(), part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoError(path, errno);
    if (got == 0) break;
    text.append(part.data(), static_cast<std::size_t>(got));
  }
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

Result<std::string> Machine::RealPath(const std::string& path) {
  std::array<char, PATH_MAX> real{};
  if (::realpath(path.c_str(), real.data()) == nullptr) return ErrnoError(path, errno);
  return std::string(real.data());
}

bool Machine::MayUse(const std::string& congestion_control) {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return fd && ::setsockopt(fd.get(), IPPROTO_TCP, TCP_CONGESTION, congestion_control.c_str(),
                            static_cast<socklen_t>(congestion_control.size())) == 0;
}

Limit Machine::LimitOf(int resource) {
  rlimit limit{};
  // The type of the first parameter is an enumeration in g++ only.
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return {};
  return {CountOf(limit.rlim_cur), CountOf(limit.rlim_max)};
}

std::vector<int> Machine::Cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

Result<ClockState> Machine::Clock() {
  timex state{};  // modes of 0: nothing is set
  const int answer = ::adjtimex(&state);
  if (answer < 0) return ErrnoError("adjtimex", errno);
  const bool unsynchronised = answer == TIME_ERROR || (state.status & STA_UNSYNC) != 0;
  return ClockState{!unsynchronised, state.maxerror};
}

Status Machine::ProbeVmsplice() {
  auto pipe = net::tcp::SplicePipe::Create();
  if (!pipe) {
    return Error(Code::kUnsupported, "the kernel provides no pipe of 256 KiB for zero-copy sends");
  }
  std::array<char, 64> bytes{};
  const iovec piece{.iov_base = bytes.data(), .iov_len = bytes.size()};
  if (pipe->Fill(std::span(&piece, 1)) < 0) {
    return Error(Code::kUnsupported,
                 fmt::format("pages cannot be spliced into a pipe: vmsplice: {}",
                             std::generic_category().message(errno)));
  }
  return Ok();
}

Result<transfer::ConnectionInfo> Machine::TryConnect(const Config& config,
                                                     const std::vector<net::Address>& numeric,
                                                     Deadline deadline) {
  Config mine = config;
  // A server here may hold the ports of the range, and nobody is to connect to this endpoint.
  mine.port_first = 0;
  mine.port_last = 0;
  mine.listen_host = "127.0.0.1";
  FERRY_TRY_ASSIGN(auto endpoint, transfer::Endpoint::Create(mine));
  const transfer::EndpointAddress address{.endpoint = {}, .at = numeric};
  FERRY_TRY_ASSIGN(const auto connection, endpoint.Connect(address, deadline));
  return connection.Info();
}

}  // namespace

std::unique_ptr<SystemView> CreateMachine() { return std::make_unique<Machine>(); }

}  // namespace ferry::tools
