// Benchmark of the CPU time that unpacking costs per message.
#include <benchmark/benchmark.h>

#include <vector>

#include "ferry/copy/testing/copy_bed.h"
#include "ferry/cuda/simulated/devices.h"
#include "ferry/tcpx/unpack/testing/scatter.h"
#include "ferry/tcpx/unpack/unpacker.h"

// The CPU time for each message before a kernel can copy it. On a simulated device the launch is
// not CUDA's, so that result shows the work around the launch.
namespace ferry::tcpx {
namespace {

enum Order : std::int64_t { kInOrder, kFewStreams, kShuffled };

// The order in which several sockets deliver a message: each its own part, in order.
void Interleave(std::vector<Fragment>* fragments, std::size_t streams) {
  std::vector<Fragment> woven;
  const std::size_t part = (fragments->size() + streams - 1) / streams;
  for (std::size_t i = 0; i < part; ++i) {
    for (std::size_t at = i; at < fragments->size(); at += part) {
      woven.push_back((*fragments)[at]);
    }
  }
  *fragments = std::move(woven);
}

Scattered MessageIn(Order order, std::size_t count) {
  const std::vector<std::uint32_t> lengths(count, 4096);
  Scattered made = Scatter(lengths, {.in_order = order != kShuffled});
  if (order == kFewStreams) Interleave(&made.fragments, 4);
  return made;
}

void BmReadFragments(benchmark::State& state) {
  const Scattered message =
      MessageIn(static_cast<Order>(state.range(1)), static_cast<std::size_t>(state.range(0)));
  const std::vector<std::uint32_t> lengths =
      LengthsOf(message.bytes, static_cast<std::uint32_t>(state.range(2)),
                static_cast<std::uint32_t>(state.range(2)));
  const ScatteredRuns runs = ScatterRuns(lengths, 1);
  FragmentReader reader;
  std::vector<Block> blocks;
  for (auto _ : state) {
    blocks.clear();
    const Status status =
        reader.Read(message.fragments, {message.pool_end, message.bytes, runs.runs}, &blocks);
    if (!status) state.SkipWithError("refused");
    benchmark::DoNotOptimize(blocks.data());
    benchmark::ClobberMemory();
  }
  state.counters["per_fragment"] = benchmark::Counter(
      static_cast<double>(state.range(0)),
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(BmReadFragments)
    ->ArgNames({"fragments", "order", "run"})
    ->Args({128, kInOrder, 1 << 30})
    ->Args({128, kFewStreams, 1 << 30})
    ->Args({128, kShuffled, 1 << 30})
    ->Args({128, kInOrder, 16'384})
    ->Args({128, kShuffled, 16'384})
    ->Args({2048, kShuffled, 1 << 30});

// A batch of messages with 128 fragments of 4 KiB. The device's time is not counted.
void BmEnqueue(benchmark::State& state) {
  const auto devices = Must(cuda::SimulatedDevices::Create({.max_delay = microseconds(0)}));
  CopyBed bed(devices.get());
  const Scattered message = MessageIn(kShuffled, 128);
  auto pool = bed.Make(message.pool_end, true, 1);
  std::vector<CopyBed::Memory> places;
  std::vector<PlacedList> requests;
  std::vector<Block> blocks;
  const PostedRun run{0, message.bytes};
  FragmentReader reader;
  Must(reader.Read(message.fragments, {message.pool_end, message.bytes, {&run, 1}}, &blocks));
  for (std::int64_t i = 0; i < state.range(0); ++i) {
    places.push_back(bed.Make(message.bytes, true, 2));
    requests.push_back({blocks, places.back().place, pool.place});
  }
  const auto by = static_cast<UnpackBy>(state.range(1));
  const auto unpacker = Must(Unpacker::Create(devices.get(), 0, {.by = by}));
  for (auto _ : state) {
    devices->Pause();
    benchmark::DoNotOptimize(Must(unpacker->Enqueue(requests)));
    benchmark::DoNotOptimize(Must(unpacker->Completed()));
    state.PauseTiming();
    devices->Resume();
    Must(unpacker->Drain(Deadline::After(std::chrono::seconds(60))));
    state.ResumeTiming();
  }
}
BENCHMARK(BmEnqueue)
    ->ArgNames({"messages", "by"})
    ->Args({1, static_cast<std::int64_t>(UnpackBy::kKernel)})
    ->Args({16, static_cast<std::int64_t>(UnpackBy::kKernel)})
    ->Args({1, static_cast<std::int64_t>(UnpackBy::kDma)});

}  // namespace
}  // namespace ferry::tcpx
