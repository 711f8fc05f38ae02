// Benchmark of packing blocks for the copy kernel.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "ferry/copy/piece_writer.h"

// The CPU time for each block of a list before a kernel can use it.
namespace ferry {
namespace {

constexpr std::size_t kRing = std::size_t{1} << 16;

BlockList Shuffled(std::size_t count, std::uint64_t bytes) {
  std::vector<std::uint64_t> dst(count);
  std::iota(dst.begin(), dst.end(), 0);
  std::vector<std::uint64_t> src = dst;
  std::mt19937_64 random(count);
  std::shuffle(dst.begin(), dst.end(), random);
  std::shuffle(src.begin(), src.end(), random);
  return *BlockList::FromPages(dst, src, bytes);
}

void PerBlock(benchmark::State& state, std::size_t blocks) {
  state.counters["per_block"] = benchmark::Counter(
      static_cast<double>(blocks),
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

// Writes around a ring, as the kernel executor does.
void BmWriteBlocks(benchmark::State& state) {
  const BlockList list = Shuffled(static_cast<std::size_t>(state.range(0)),
                                  static_cast<std::uint64_t>(state.range(1)));
  const PlacedList placed{list.blocks(), {1 << 20, 1 << 20}, {1 << 21, 1 << 21}};
  std::vector<PackedBlock> ring(kRing);
  std::size_t at = 0;
  std::size_t written = 0;
  for (auto _ : state) {
    PieceWriter writer(placed, 32'768);
    while (!writer.done()) {
      if (at == kRing) at = 0;
      const auto* const end = writer.Write(ring.data() + at, ring.data() + kRing);
      written += static_cast<std::size_t>(end - ring.data()) - at;
      at = static_cast<std::size_t>(end - ring.data());
    }
    benchmark::DoNotOptimize(ring.data());
    benchmark::ClobberMemory();
  }
  benchmark::DoNotOptimize(written);
  PerBlock(state, list.size());
}
BENCHMARK(BmWriteBlocks)->Args({256, 4096})->Args({16'384, 4096})->Args({1024, 65'536});

// A plain copy of the list: the minimum time for reading and writing its bytes.
void BmCopyTheList(benchmark::State& state) {
  const BlockList list = Shuffled(static_cast<std::size_t>(state.range(0)), 4096);
  std::vector<Block> out(list.size());
  for (auto _ : state) {
    std::copy(list.blocks().begin(), list.blocks().end(), out.begin());
    benchmark::DoNotOptimize(out.data());
    benchmark::ClobberMemory();
  }
  PerBlock(state, list.size());
}
BENCHMARK(BmCopyTheList)->Arg(256)->Arg(16'384);

}  // namespace
}  // namespace ferry
