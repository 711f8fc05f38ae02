// Latency of small operations between two processes; bench/latency runs it.

#include <fmt/core.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "ferry/core/check.h"
#include "ferry/core/fd.h"
#include "tests/support/engine_peer.h"

// How long small things take between two processes, by how the program waits for them:
//   ferry_latency_bench deadline PAUSE_US RUNS   a receive with a deadline of 0.2 s beside a thread
//                                                that posts and cancels receives with this pause
//   ferry_latency_bench wait MEDIANS SAMPLES     64-byte writes, by Wait() and by poll(), and 64
//   bytes
//                                                there and back over a bare socket
//   ferry_latency_bench threads COUNT SECONDS    64-byte writes of many threads that Wait()
// Each prints one line of JSON.
namespace ferry::tests {
namespace {

using transfer::Operation;

double MicrosSince(Clock::time_point start) { return Seconds(Clock::now() - start) * 1e6; }

std::string ListOf(const std::vector<double>& values) {
  std::string all;
  for (const double value : values) all += fmt::format("{}{:.6g}", all.empty() ? "" : ", ", value);
  return "[" + all + "]";
}

double Quantile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(part * static_cast<double>(values.size() - 1))];
}

double DeadlineBesidePosts(transfer::Connection& connection, microseconds pause) {
  constexpr std::chrono::seconds kLimit{5};
  std::vector<std::byte> room(64);
  // A wait first, which sends the engine's thread away for a moment.
  (void)connection.TakeNotification(Deadline::After(milliseconds(5)));
  const Deadline deadline = Deadline::After(milliseconds(200));
  const auto start = Clock::now();
  Operation timed = Must(connection.Recv(8, ~0ull, room, {.deadline = deadline}));
  while (!timed.Done() && Clock::now() - start < kLimit) {
    if (auto filler = connection.Recv(7, ~0ull, room)) filler->Cancel();
    if (pause.count() > 0) std::this_thread::sleep_for(pause);
  }
  const double took = Seconds(Clock::now() - start);
  timed.Cancel();
  (void)timed.Wait(TestDeadline());
  return took;
}

void Deadlines(microseconds pause, int runs) {
  LinkedPeer link({"listen_host=127.0.0.1", "lanes=1"});
  std::vector<double> took;
  for (int i = 0; i < runs; ++i) took.push_back(DeadlineBesidePosts(link.connection, pause));
  fmt::print("{{\"pause_us\": {}, \"seconds\": {}, \"lost\": {}}}\n", pause.count(), ListOf(took),
             link.connection.lost());
}

// A process that sends back each 64 bytes over a blocking TCP socket: what the machine makes two
// processes wait that do nothing else.
class Echo {
 public:
  Echo() {
    UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    FERRY_CHECK(::bind(listener.get(), any, length) == 0 && ::listen(listener.get(), 1) == 0 &&
                ::getsockname(listener.get(), any, &length) == 0);
    socket_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    FERRY_CHECK(::connect(socket_.get(), any, length) == 0);
    const UniqueFd accepted(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const int on = 1;
    for (const int fd : {socket_.get(), accepted.get()}) {
      FERRY_CHECK(::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
    }
    if (::fork() != 0) return;
    socket_.reset();
    std::array<char, 64> bytes{};
    while (::recv(accepted.get(), bytes.data(), bytes.size(), MSG_WAITALL) == 64 &&
           ::send(accepted.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == 64) {
    }
    ::_exit(0);
  }

  double RoundTrip() {
    std::array<char, 64> bytes{};
    const auto start = Clock::now();
    FERRY_CHECK(::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == 64 &&
                ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_WAITALL) == 64);
    return MicrosSince(start);
  }

 private:
  UniqueFd socket_;
};

enum class How { kWait, kPoll, kSocket };

double WriteOnce(transfer::Connection& connection, const PatternRegion& local,
                 const transfer::RemoteRegion& remote, How how) {
  const auto start = Clock::now();
  Operation write = Must(connection.Write(local.region, 0, remote, 0, 64));
  if (how == How::kPoll) {
    pollfd ready{.fd = Must(write.CompletionFd()), .events = POLLIN, .revents = 0};
    (void)::poll(&ready, 1, -1);
  }
  MustDo(write.Wait(TestDeadline()));
  return MicrosSince(start);
}

void Waits(int medians, int samples) {
  Echo echo;  // forks, so before there are threads
  LinkedPeer link({"listen_host=127.0.0.1"});
  const PatternRegion local(link.endpoint, 64, kSourceSeed);
  const auto remote = Must(link.connection.Import(link.peer.Region("in", 64, kPeerInSeed)));
  std::vector<double> median[3];
  std::vector<double> all[3];
  for (int round = -1; round < medians; ++round) {  // the first warms up
    for (const How how : {How::kWait, How::kPoll, How::kSocket}) {
      std::vector<double> took;
      for (int i = 0; i < samples; ++i) {
        took.push_back(how == How::kSocket ? echo.RoundTrip()
                                           : WriteOnce(link.connection, local, remote, how));
      }
      if (round < 0) continue;
      const auto at = static_cast<std::size_t>(how);
      median[at].push_back(Quantile(took, 0.5));
      all[at].insert(all[at].end(), took.begin(), took.end());
    }
  }
  constexpr const char* kNames[] = {"wait_us", "poll_us", "socket_us"};
  fmt::print("{{\"samples\": {}", samples);
  for (std::size_t at = 0; at < 3; ++at) {
    fmt::print(", \"{}\": {{\"medians\": {}, \"p99\": {:.1f}}}", kNames[at], ListOf(median[at]),
               Quantile(all[at], 0.99));
  }
  fmt::print("}}\n");
}

void Threads(int count, int seconds) {
  LinkedPeer link({"listen_host=127.0.0.1"});
  const PatternRegion local(link.endpoint, 64, kSourceSeed);
  const auto remote = Must(link.connection.Import(link.peer.Region("in", 64, kPeerInSeed)));
  std::atomic<std::uint64_t> ended{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&] {
      while (!stop.load(std::memory_order_relaxed)) {
        (void)WriteOnce(link.connection, local, remote, How::kWait);
        ended.fetch_add(1, std::memory_order_relaxed);
      }
    });
  }
  const auto start = Clock::now();
  std::this_thread::sleep_for(std::chrono::seconds(seconds));
  const double rate = static_cast<double>(ended.load()) / Seconds(Clock::now() - start);
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  fmt::print("{{\"threads\": {}, \"writes_per_second\": {:.0f}}}\n", count, rate);
}

int RunLatencyBench(std::string_view what, int first, int second) {
  if (what == "deadline") {
    Deadlines(microseconds(first), second);
  } else if (what == "wait") {
    Waits(first, second);
  } else if (what == "threads") {
    Threads(first, second);
  } else {
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace ferry::tests

int main(int argc, char** argv) {
  namespace tests = ferry::tests;
  if (tests::RoleOf(argc, argv) == "engine") {
    tests::LinePipe parent = tests::JoinParent();
    return tests::RunEnginePeer(parent);
  }
  if (argc != 4) {
    (void)std::fputs("usage: ferry_latency_bench deadline|wait|threads NUMBER NUMBER\n", stderr);
    return 2;
  }
  try {
    return tests::RunLatencyBench(argv[1], std::stoi(argv[2]), std::stoi(argv[3]));
  } catch (const std::exception& error) {
    (void)std::fprintf(stderr, "ferry_latency_bench: %s\n", error.what());
    return 1;
  }
}
