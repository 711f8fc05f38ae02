// Serves counters with prometheus-cpp.
#include "ferry/transfer/stats/metrics.h"

#include <fmt/core.h>

#include <charconv>
#include <exception>
#include <filesystem>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "ferry/net/address.h"
#include "ferry/net/resolve.h"

#ifdef FERRY_HAVE_PROMETHEUS
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>
#include <pthread.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "ferry/core/fd.h"
#include "ferry/core/fork.h"
#include "ferry/core/log.h"
#include "ferry/transfer/stats/metrics_families.h"
#endif

namespace ferry::transfer {

#ifdef FERRY_HAVE_PROMETHEUS

namespace {

class Collector final : public prometheus::Collectable {
 public:
  explicit Collector(MetricsServer::Source source) : source_(std::move(source)) {}
  std::vector<prometheus::MetricFamily> Collect() const override { return FamiliesOf(source_()); }

 private:
  const MetricsServer::Source source_;
};

bool ListensAt(int fd, const net::Address& at) {
  int listens = 0;
  socklen_t size = sizeof listens;
  if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) {
    return false;
  }
  net::RawAddress raw;
  raw.length = sizeof raw.storage;
  auto* name = reinterpret_cast<sockaddr*>(&raw.storage);  // as in RawAddress::get()
  return ::getsockname(fd, name, &raw.length) == 0 && net::FromRaw(raw) == at;
}

// Finds the listening sockets of this process, because prometheus-cpp does not expose its
// descriptors.
std::vector<int> ListenersAt(const net::Address& at) {
  std::vector<int> found;
  std::error_code error;
  using Entries = std::filesystem::directory_iterator;
  for (Entries it("/proc/self/fd", error); !error && it != Entries(); it.increment(error)) {
    const std::string number = it->path().filename().string();
    int fd = -1;
    std::from_chars(number.data(), number.data() + number.size(), fd);
    if (ListensAt(fd, at)) found.push_back(fd);
  }
  return found;
}

// A client that connects and sends nothing must not block others for long.
constexpr int kWorkers = 2;

// civetweb's threads that have begun: each sets the disposition of SIGPIPE, then its own name.
int ThreadsThatBegan() {
  int began = 0;
  std::error_code error;
  using Entries = std::filesystem::directory_iterator;
  for (Entries it("/proc/self/task", error); !error && it != Entries(); it.increment(error)) {
    std::ifstream file(it->path() / "comm");
    std::string name;
    if (std::getline(file, name) && name.starts_with("civetweb-")) ++began;
  }
  return began;
}

// civetweb, inside prometheus-cpp, ignores SIGPIPE for the whole process. The disposition belongs
// to the application, so it is put back; civetweb's threads begin with the signal blocked instead.
class KeepsSigPipe {
 public:
  KeepsSigPipe() {
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, SIGPIPE);
    (void)::pthread_sigmask(SIG_BLOCK, &only, &mask_);
    (void)::sigaction(SIGPIPE, nullptr, &disposition_);
  }
  ~KeepsSigPipe() {
    (void)::sigaction(SIGPIPE, &disposition_, nullptr);
    (void)::pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
  }
  // Until the threads of a server that was made since have begun, for a second at most.
  void AwaitThreads() const {
    const Deadline deadline = Deadline::After(kLongestStart);
    while (ThreadsThatBegan() < began_ + kWorkers + 1 && !deadline.expired()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // they give no event
    }
  }
  KeepsSigPipe(const KeepsSigPipe&) = delete;
  KeepsSigPipe& operator=(const KeepsSigPipe&) = delete;

 private:
  static constexpr std::chrono::seconds kLongestStart{1};

  const int began_ = ThreadsThatBegan();
  sigset_t mask_{};
  struct sigaction disposition_ {};
};

class Prometheus final : public MetricsServer {
 public:
  // Throws the exceptions of prometheus-cpp.
  Prometheus(const net::Address& at, Source source)
      : collector_(std::make_shared<Collector>(std::move(source))),
        exposer_(std::vector<std::string>{"listening_ports", at.ToString(), "num_threads",
                                          std::to_string(kWorkers), "request_timeout_ms", "5000"}) {
    exposer_.RegisterCollectable(collector_);
    const std::vector<int> ports = exposer_.GetListeningPorts();
    if (!ports.empty()) port_ = static_cast<std::uint16_t>(ports.front());
    listeners_ = ListenersAt({at.host, port_});
    // A child of fork() must not keep the port.
    for (const int fd : listeners_) CloseInChildren(fd);
  }
  ~Prometheus() override {
    for (const int fd : listeners_) StopClosingInChildren(fd);
  }
  Prometheus(const Prometheus&) = delete;
  Prometheus& operator=(const Prometheus&) = delete;
  std::uint16_t port() const noexcept override { return port_; }

 private:
  const std::shared_ptr<Collector> collector_;  // the exposer holds it weakly
  prometheus::Exposer exposer_;
  std::uint16_t port_ = 0;
  std::vector<int> listeners_;  // owned by the exposer
};

Result<net::Address> Resolved(const std::string& text, Deadline deadline) {
  const auto colon = text.rfind(':');
  // ":9000" alone: metrics are not for other machines unless that is asked for.
  const std::string whole = colon == 0 ? "127.0.0.1" + text : text;
  FERRY_TRY_ASSIGN(const net::Address address, net::ParseAddress(whole, 0));
  FERRY_TRY_ASSIGN(const std::vector<net::Address> all, net::Resolve(address, deadline));
  return all.front();
}

// Ports that are tried, so that the processes of a host can share one setting.
constexpr int kPorts = 64;

// Why no server can listen there, as errno; prometheus-cpp does not tell. 0: it can.
int ListenError(const net::Address& at) {
  auto raw = net::ToRaw(at);
  if (!raw) return EINVAL;
  const UniqueFd probe(::socket(raw->family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!probe) return errno;
  const int on = 1;
  (void)::setsockopt(probe.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const bool listens =
      ::bind(probe.get(), raw->get(), raw->length) == 0 && ::listen(probe.get(), 1) == 0;
  return listens ? 0 : errno;
}

Result<std::unique_ptr<MetricsServer>> ServeAt(const net::Address& at,
                                               const MetricsServer::Source& source) {
  static std::mutex
      one_at_a_time;  // of two, the second would keep what civetweb has set for the first
  const std::lock_guard lock(one_at_a_time);
  const KeepsSigPipe keeps_disposition;
  try {
    auto server = std::make_unique<Prometheus>(at, source);
    keeps_disposition.AwaitThreads();
    return std::unique_ptr<MetricsServer>(std::move(server));
  } catch (const std::exception& failure) {
    const int error = ListenError(at);
    const bool in_use = error == EADDRINUSE;
    // The rest (no descriptors, no thread) leaves an endpoint without metrics.
    const bool wrong_address =
        error == EADDRNOTAVAIL || error == EINVAL || error == EACCES || error == EAFNOSUPPORT;
    return Error(wrong_address ? Code::kInvalidArgument : Code::kUnavailable,
                 fmt::format("cannot serve metrics at {}: {}; name a free port of this machine "
                             "(FERRY_METRICS_ADDRESS), or none",
                             at.ToString(),
                             in_use       ? "the port is in use by another endpoint or program"
                             : error != 0 ? ErrnoError("bind", error).message()
                                          : failure.what()));
  }
}

}  // namespace

Result<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& address,
                                                            Deadline deadline, Source source) {
  FERRY_TRY_ASSIGN(const net::Address first, Resolved(address, deadline));
  net::Address at = first;
  auto server = ServeAt(at, source);
  for (int i = 1; i < kPorts && !server && ListenError(at) == EADDRINUSE; ++i) {
    if (at.port == 0 || at.port == 0xffff) return server;
    ++at.port;
    server = ServeAt(at, source);
  }
  if (server && at.port != first.port) {
    Log(LogLevel::kWarn, "transfer",
        "metrics of this endpoint are at {}: the ports from {} on are in use", at.ToString(),
        first.port);
  }
  return server;
}

#else

Result<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& address,
                                                            Deadline /*deadline*/,
                                                            Source /*source*/) {
  return Error(Code::kUnsupported,
               fmt::format("cannot serve metrics at {}: this build has no prometheus-cpp; install "
                           "prometheus-cpp-dev and build again, or leave metrics_address "
                           "(FERRY_METRICS_ADDRESS) empty",
                           address));
}

#endif

}  // namespace ferry::transfer
