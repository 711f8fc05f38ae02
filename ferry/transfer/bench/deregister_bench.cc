// Measures the cost of registering and deregistering memory beside connected peers.
#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <vector>

#include "ferry/transfer/testing/linked_endpoints.h"
#include "ferry/transfer/testing/raw_peer.h"

// Cost of registering and deregistering memory while peers are connected that never access the
// region, or while some have read it.
namespace ferry::transfer {
namespace {

struct Crowd {
  explicit Crowd(std::size_t connections) {
    rlimit files{};
    (void)::getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = std::max<rlim_t>(files.rlim_cur, std::min<rlim_t>(files.rlim_max, 16384));
    (void)::setrlimit(RLIMIT_NOFILE, &files);
    Config config = SmallSlices(2, 2);
    config.max_connections = 0;
    endpoint.emplace(Must(Endpoint::Create(config)));
    for (std::size_t i = 0; i < connections; ++i) {
      peers.emplace_back(endpoint->port(), 2);
      accepted.push_back(Must(endpoint->Accept(Soon())));
    }
  }

  std::optional<Endpoint> endpoint;
  std::deque<RawPeer> peers;
  std::deque<Connection> accepted;
};

// Arguments: number of connections, and how many of them have read the region.
void RegisterAndDeregister(benchmark::State& state) {
  Crowd crowd(static_cast<std::size_t>(state.range(0)));
  const auto readers = static_cast<std::size_t>(state.range(1));
  std::vector<std::byte> memory(4096);
  for (auto _ : state) {
    Region region = Must(crowd.endpoint->Register(memory, Rights::kReadWrite));
    state.PauseTiming();
    for (std::size_t i = 0; i < readers; ++i) {
      auto body = Pod(wire::WriteBody{region.remote().key, 0, 1});
      wire::Append(&body, wire::BlockOnWire{0, 8});
      RawLane& lane = crowd.peers[i].lane();
      (void)lane.Say({.type = wire::Type::kReadRequest, .operation = 1, .body = body});
      (void)lane.Expect(wire::Type::kReadData);
      (void)lane.AckAll();
      (void)lane.IsQuiet();
    }
    state.ResumeTiming();
    if (!region.Deregister(Soon())) state.SkipWithError("still in use");
  }
}
BENCHMARK(RegisterAndDeregister)
    ->ArgNames({"connections", "readers"})
    ->Args({1, 0})
    ->Args({100, 0})
    ->Args({1000, 0})
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(RegisterAndDeregister)
    ->ArgNames({"connections", "readers"})
    ->Args({1000, 1})
    ->Args({1000, 10})
    ->Iterations(200)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace ferry::transfer
