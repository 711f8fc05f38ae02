// Measures the messages that an NCCL network plugin carries between two processes of this machine,
// each with one thread that polls, as NCCL's proxy does:
//
//   ferry_nccl_bench PLUGIN SIZE COMMS DEPTH SECONDS [both]      messages one way, or both ways
//   ferry_nccl_bench PLUGIN SIZE pingpong SECONDS [DEPTH]        half a round trip, with so many
//                                                                receives posted ahead (8); 1 is as
//                                                                a collective alone has it
//
// Prints one JSON object.
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "plugins/nccl/tests/testing/nccl_host.h"

namespace ferry::nccl_net::testing {
namespace {

struct BenchCase {
  std::string plugin;
  int version = 12;
  std::size_t size = 0;
  std::size_t comms = 1;
  std::size_t depth = 8;
  double seconds = 2;
  bool both = false;
  bool pingpong = false;
};

void Tell(int pipe, const void* bytes, std::size_t size) {
  if (::write(pipe, bytes, size) != static_cast<ssize_t>(size)) throw std::runtime_error("write");
}
void Hear(int pipe, void* bytes, std::size_t size) {
  if (::recv(pipe, bytes, size, MSG_WAITALL) != static_cast<ssize_t>(size)) {
    throw std::runtime_error("the other process has gone");
  }
}

double CpuSeconds() {
  rusage usage{};
  (void)::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// The messages of one comm in flight, each with its own place in memory.
class Stream {
 public:
  Stream(NcclHost* host, void* comm, bool sends, const BenchCase& what)
      : host_(host),
        comm_(comm),
        sends_(sends),
        what_(what),
        memory_(what.depth * what.size, std::byte{7}) {}
  ~Stream() {
    if (sends_) {
      (void)(*host_)->CloseSend(comm_);
    } else {
      (void)(*host_)->CloseReceive(comm_);
    }
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // At most so many messages in all.
  void Step(std::uint64_t limit) {
    while (!requests_.empty()) {
      int done = 0;
      int bytes[32] = {};
      Require((*host_)->Test(requests_.front(), &done, bytes), "test");
      if (done == 0) break;
      requests_.pop_front();
      ++done_;
    }
    while (requests_.size() < what_.depth && posted_ < limit) {
      void* request = nullptr;
      const Message message{memory_.data() + posted_ % what_.depth * what_.size, what_.size, 5,
                            nullptr};
      Require(sends_ ? (*host_)->Send(comm_, message, &request)
                     : (*host_)->Receive(comm_, message, &request),
              "post");
      if (request == nullptr) break;
      ++posted_;
      requests_.push_back(request);
    }
  }
  std::uint64_t done() const noexcept { return done_; }

 private:
  NcclHost* const host_;
  void* const comm_;
  const bool sends_;
  const BenchCase& what_;
  std::vector<std::byte> memory_;
  std::deque<void*> requests_;
  std::uint64_t posted_ = 0;
  std::uint64_t done_ = 0;
};

using Streams = std::vector<std::unique_ptr<Stream>>;

void Open(NcclHost& host, const BenchCase& what, bool sends, int pipe, Streams* streams) {
  for (std::size_t i = 0; i < what.comms; ++i) {
    const Deadline deadline = Deadline::After(std::chrono::seconds(30));
    Handle handle{};
    if (sends) {
      Hear(pipe, handle.data(), handle.size());
      NcclConnect connect(&host, handle);
      streams->push_back(std::make_unique<Stream>(&host, connect.Connect(deadline), true, what));
    } else {
      NcclListen listen(&host);
      Tell(pipe, listen.handle().data(), handle.size());
      streams->push_back(std::make_unique<Stream>(&host, listen.Accept(deadline), false, what));
    }
  }
}

// All streams until each has so many; returns seconds.
double Run(const Streams& streams, std::uint64_t messages) {
  const auto begin = Clock::now();
  for (bool all = false; !all;) {
    all = true;
    for (const auto& stream : streams) {
      stream->Step(messages);
      all = all && stream->done() >= messages;
    }
    std::this_thread::yield();  // as NCCL's proxy
  }
  return Seconds(Clock::now() - begin);
}

int RunStreams(const BenchCase& what, int rank, int pipe) {
  NcclHost host(what.plugin, what.version);
  Streams streams;
  Open(host, what, /*sends=*/rank == 1, pipe, &streams);
  if (what.both) Open(host, what, /*sends=*/rank == 0, pipe, &streams);
  // As many as take so long by the first few.
  constexpr std::uint64_t kFirst = 64;
  std::uint64_t messages = 0;
  const double first = Run(streams, kFirst);
  if (rank == 0) {
    messages = kFirst + std::max<std::uint64_t>(
                            kFirst, static_cast<std::uint64_t>(kFirst * what.seconds / first));
    Tell(pipe, &messages, sizeof messages);
  } else {
    Hear(pipe, &messages, sizeof messages);
  }
  const double cpu_before = CpuSeconds();
  const double seconds = Run(streams, messages);
  double cpu = CpuSeconds() - cpu_before;
  if (rank == 1) {
    Tell(pipe, &cpu, sizeof cpu);
    return 0;
  }
  double other = 0;
  Hear(pipe, &other, sizeof other);
  const double bytes = static_cast<double>(what.size) * static_cast<double>(what.comms) *
                       static_cast<double>(messages - kFirst);
  std::printf(
      "{\"size\": %zu, \"comms\": %zu, \"depth\": %zu, \"both\": %s, \"gbps\": %.3f, "
      "\"messages_per_second\": %.0f, \"cpu_seconds_per_gb\": %.3f}\n",
      what.size, what.comms, what.depth, what.both ? "true" : "false", bytes / seconds / 1e9,
      static_cast<double>(what.comms * (messages - kFirst)) / seconds, (cpu + other) / bytes * 1e9);
  return 0;
}

int RunPingPong(const BenchCase& what, int rank, int pipe) {
  NcclHost host(what.plugin, what.version);
  Streams streams;
  Open(host, what, rank == 1, pipe, &streams);
  Open(host, what, rank == 0, pipe, &streams);
  Stream& in = *streams[rank == 0 ? 0 : 1];
  Stream& out = *streams[rank == 0 ? 1 : 0];
  const auto rounds = static_cast<std::uint64_t>(2000 * what.seconds);
  std::vector<double> micros;
  // Both have their comms.
  Tell(pipe, &rounds, sizeof rounds);
  std::uint64_t theirs = 0;
  Hear(pipe, &theirs, sizeof theirs);
  for (std::uint64_t i = 0; i < rounds; ++i) {
    const auto begin = Clock::now();
    if (rank == 0) out.Step(i + 1);
    in.Step(i + what.depth);
    while (in.done() <= i) in.Step(i + what.depth);
    if (rank == 1) out.Step(i + 1);
    while (out.done() <= i) out.Step(i + 1);
    micros.push_back(Seconds(Clock::now() - begin) * 1e6 / 2);
  }
  std::sort(micros.begin(), micros.end());
  // Nobody closes before the other has all.
  Tell(pipe, &rounds, sizeof rounds);
  Hear(pipe, &theirs, sizeof theirs);
  if (rank == 0) {
    std::printf(
        "{\"size\": %zu, \"depth\": %zu, \"half_rtt_us_p50\": %.2f, \"half_rtt_us_p99\": %.2f}\n",
        what.size, what.depth, micros[micros.size() / 2], micros[micros.size() * 99 / 100]);
  }
  return 0;
}

int BenchMain(const BenchCase& what) {
  int pipes[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, pipes) != 0) return 1;
  const pid_t child = ::fork();
  const int rank = child == 0 ? 1 : 0;
  (void)::close(pipes[1 - rank]);
  int status = 1;
  try {
    status =
        what.pingpong ? RunPingPong(what, rank, pipes[rank]) : RunStreams(what, rank, pipes[rank]);
  } catch (const std::exception& error) {
    (void)std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
  }
  (void)std::fflush(stdout);
  if (rank == 1) ::_exit(status);
  (void)::close(pipes[rank]);
  int ended = 0;
  (void)::waitpid(child, &ended, 0);
  return status != 0 ? status : ended;
}

}  // namespace
}  // namespace ferry::nccl_net::testing

int main(int argc, char** argv) {
  ferry::nccl_net::testing::BenchCase what;
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() < 4) {
    (void)std::fprintf(stderr,
                       "usage: ferry_nccl_bench PLUGIN SIZE COMMS DEPTH SECONDS [both] | "
                       "PLUGIN SIZE pingpong SECONDS [DEPTH]\n");
    return 2;
  }
  what.plugin = words[0];
  what.size = std::stoull(words[1]);
  if (words[2] == "pingpong") {
    what.pingpong = true;
    what.seconds = std::stod(words[3]);
    if (words.size() > 4) what.depth = std::stoull(words[4]);
  } else {
    what.comms = std::stoull(words[2]);
    what.depth = std::stoull(words[3]);
    what.seconds = words.size() > 4 ? std::stod(words[4]) : 2;
    what.both = words.size() > 5;
  }
  return ferry::nccl_net::testing::BenchMain(what);
}
