// Socket options, congestion control and resets.
#include "ferry/net/tcp/socket_options.h"

#include <fmt/core.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

namespace ferry::net::tcp {
namespace {

constexpr std::uint32_t kNearRttMicros = 1000;

Status SetInt(int fd, int level, int option, int value, const char* name) {
  if (::setsockopt(fd, level, option, &value, sizeof value) != 0) {
    return ErrnoError(fmt::format("setsockopt {} to {}", name, value), errno);
  }
  return Ok();
}

Status SetBuffer(int fd, int option, std::uint64_t bytes, const char* name) {
  if (bytes == 0) return Ok();  // the kernel's autotuning grows further than a fixed size
  return SetInt(fd, SOL_SOCKET, option, static_cast<int>(std::min<std::uint64_t>(bytes, 1U << 30)),
                name);
}

// SO_MAX_PACING_RATE (socket(7)): the kernel's TCP paces by itself where the interface's queue does
// not.
Status SetRate(int fd, std::uint64_t bytes_per_second) {
  if (bytes_per_second == 0) return Ok();
  if (::setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &bytes_per_second,
                   sizeof bytes_per_second) != 0) {
    return ErrnoError(fmt::format("setsockopt SO_MAX_PACING_RATE to {}", bytes_per_second), errno);
  }
  return Ok();
}

int GetInt(int fd, int level, int option) {
  int value = 0;
  socklen_t length = sizeof value;
  return ::getsockopt(fd, level, option, &value, &length) == 0 ? value : 0;
}

std::string CongestionControlOf(int fd) {
  std::array<char, 32> name{};
  socklen_t length = name.size() - 1;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), &length) != 0) return "unknown";
  return name.data();
}

bool TrySetCongestionControl(int fd, const std::string& name) {
  return ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.c_str(),
                      static_cast<socklen_t>(name.size())) == 0;
}

bool IsBbr(const std::string& name) { return name.rfind("bbr", 0) == 0; }

bool AvoidBbr(int fd) {
  return TrySetCongestionControl(fd, "cubic") || TrySetCongestionControl(fd, "reno");
}

// The default of this thread's network namespace, which a fresh socket has. Asked for once a
// second.
std::string SystemCongestionControl() {
  thread_local Clock::time_point until;
  thread_local std::string name;
  if (Clock::now() >= until) {
    const UniqueFd fresh(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    name = CongestionControlOf(fresh.get());
    until = Clock::now() + std::chrono::seconds(1);
  }
  return name;
}

bool IsNear(int fd) {
  const auto remote = RemoteAddressOf(fd);
  if (remote) {
    const auto raw = ToRaw(*remote);
    if (raw && IsLoopback(*raw)) return true;
  }
  tcp_info info{};
  socklen_t length = sizeof info;
  return ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 && info.tcpi_rtt > 0 &&
         // Measured in the connection's handshake. 0: not measured, which counts as far.
         info.tcpi_rtt < kNearRttMicros;
}

Result<std::string> ChooseCongestionControl(int fd, const Config& config) {
  const std::string present = CongestionControlOf(fd);
  using Choice = CongestionControl::Choice;
  if (config.congestion_control.choice == Choice::kSystem) {
    return present + " (the system's default)";
  }
  if (config.congestion_control.choice == Choice::kNamed) {
    const std::string& wanted = config.congestion_control.name;
    if (TrySetCongestionControl(fd, wanted)) return wanted + " (as set)";
    const int error = errno;
    return Error(Code::kUnsupported,
                 fmt::format("cannot use congestion control \"{}\": {}; choose one of "
                             "net.ipv4.tcp_allowed_congestion_control or set "
                             "FERRY_CONGESTION_CONTROL=auto",
                             wanted, std::strerror(error)));
  }
  const std::string usual = SystemCongestionControl();
  if (!IsBbr(usual)) return present + " (the system's default)";
  if (!IsNear(fd)) {
    (void)TrySetCongestionControl(fd, usual);
    return CongestionControlOf(fd) + " (the system's default, kept for a far peer)";
  }
  if (!IsBbr(present) || AvoidBbr(fd)) {
    return fmt::format("{} (in place of {}, which halves the rate to a near peer)",
                       CongestionControlOf(fd), usual);
  }
  return present + " (slow to a near peer, but neither cubic nor reno is allowed)";
}

Result<Address> NameOf(int fd, int (*get)(int, sockaddr*, socklen_t*), const char* call) {
  RawAddress raw;
  raw.length = sizeof raw.storage;
  if (get(fd, reinterpret_cast<sockaddr*>(&raw.storage), &raw.length) != 0) {
    return ErrnoError(call, errno);
  }
  return FromRaw(raw);
}

}  // namespace

Result<UniqueFd> OpenSocket(int family, const Config& config) {
  UniqueFd fd =
      ClosedInChildren(UniqueFd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)));
  if (!fd) return ErrnoError("socket", errno);
  // Set before connect and listen: the window scale is negotiated in the handshake.
  FERRY_TRY(SetBuffer(fd.get(), SO_SNDBUF, config.send_buffer_bytes, "SO_SNDBUF"));
  FERRY_TRY(SetBuffer(fd.get(), SO_RCVBUF, config.recv_buffer_bytes, "SO_RCVBUF"));
  // A connection that starts under BBR is paced by timers forever, even if it changes later. So it
  // starts under another algorithm, and gets BBR back if the peer is distant.
  const CongestionControl& wanted = config.congestion_control;
  if (wanted.choice == CongestionControl::Choice::kAuto) {
    if (IsBbr(CongestionControlOf(fd.get()))) (void)AvoidBbr(fd.get());
  } else if (wanted.choice == CongestionControl::Choice::kNamed) {
    (void)TrySetCongestionControl(fd.get(), wanted.name);  // checked once connected
  }
  return fd;
}

Result<std::string> ConfigureConnected(int fd, const Config& config) {
  const auto timeout = std::chrono::duration_cast<milliseconds>(config.peer_timeout);
  // Three probes within the timeout; keepalive works in whole seconds. It covers an idle
  // connection, TCP_USER_TIMEOUT one with unacknowledged data.
  const int seconds = std::max<int>(1, static_cast<int>(timeout.count() / 1000 / 3));
  FERRY_TRY(SetInt(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY"));
  FERRY_TRY(SetInt(fd, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE"));
  FERRY_TRY(SetInt(fd, IPPROTO_TCP, TCP_KEEPIDLE, seconds, "TCP_KEEPIDLE"));
  FERRY_TRY(SetInt(fd, IPPROTO_TCP, TCP_KEEPINTVL, seconds, "TCP_KEEPINTVL"));
  FERRY_TRY(SetInt(fd, IPPROTO_TCP, TCP_KEEPCNT, 3, "TCP_KEEPCNT"));
  FERRY_TRY(SetInt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(timeout.count()),
                   "TCP_USER_TIMEOUT"));
  FERRY_TRY(SetRate(fd, config.lane_rate_bytes));
  return ChooseCongestionControl(fd, config);
}

// connect() with AF_UNSPEC dissolves the connection at once, by a reset because of SO_LINGER with 0
// seconds. A close() would not while a child process holds the descriptor (docs/threading.md,
// fork).
void ResetConnection(int fd) noexcept {
  const linger at_once{1, 0};
  (void)::setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  sockaddr nobody{};
  nobody.sa_family = AF_UNSPEC;
  (void)::connect(fd, &nobody, sizeof nobody);
}

Result<Address> LocalAddressOf(int fd) { return NameOf(fd, ::getsockname, "getsockname"); }
Result<Address> RemoteAddressOf(int fd) { return NameOf(fd, ::getpeername, "getpeername"); }

bool IsSameMachine(const Address& local, const Address& remote) {
  const auto raw = ToRaw(remote);
  return (raw && IsLoopback(*raw)) || local.host == remote.host;
}

void DescribeBuffers(int fd, LaneInfo* info) {
  info->send_buffer_bytes = static_cast<std::uint64_t>(GetInt(fd, SOL_SOCKET, SO_SNDBUF));
  info->recv_buffer_bytes = static_cast<std::uint64_t>(GetInt(fd, SOL_SOCKET, SO_RCVBUF));
}

LaneInfo DescribeSocket(int fd, InterfaceTable* interfaces) {
  LaneInfo info;
  const auto local = LocalAddressOf(fd);
  if (local) {
    info.local = local->ToString();
    info.interface = interfaces->InterfaceOf(*local);
  }
  if (const auto remote = RemoteAddressOf(fd)) {
    info.remote = remote->ToString();
    info.same_machine = IsSameMachine(local ? *local : Address(), *remote);
  }
  info.congestion_control = CongestionControlOf(fd);
  DescribeBuffers(fd, &info);
  return info;
}

}  // namespace ferry::net::tcp
