// Implements the memory whose transfers `ferry perf` measures.

#include "tools/perf/memory.h"

#include <algorithm>

namespace ferry::tools {
namespace {

constexpr int kCopies = 5;

}  // namespace

Result<PerfMemory> PerfMemory::Allocate(MemoryChoice choice, std::uint64_t bytes,
                                        const Config& config) {
  PerfMemory memory;
  if (choice.is_host()) {
    FERRY_TRY_ASSIGN(memory.host_, HostBuffer::Allocate(bytes));
    return memory;
  }
  FERRY_TRY_ASSIGN(memory.gpu_, GpuMirror::Allocate(choice, bytes, config));
  FERRY_TRY(memory.Upload(0, bytes));
  return memory;
}

std::span<std::byte> PerfMemory::bytes() const noexcept {
  return gpu_ ? gpu_.device() : host_.bytes();
}

Status PerfMemory::Upload(std::uint64_t at, std::uint64_t bytes) {
  return gpu_ ? gpu_.Move(cuda::CopyKind::kHostToDevice, at, bytes) : Ok();
}

Status PerfMemory::Fill(const LaidOut& at, std::uint64_t seed) {
  const std::uint64_t length = at.layout.region_bytes();
  FillPattern(host().subspan(at.begin, length), at.layout, seed);
  return Upload(at.begin, length);
}

Status PerfMemory::Poison() {
  tools::Poison(host());
  return Upload(0, host().size());
}

Result<std::optional<std::uint64_t>> PerfMemory::FindWrong(const LaidOut& at, std::uint64_t seed) {
  const auto region = host().subspan(at.begin, at.layout.region_bytes());
  if (gpu_) {
    tools::Poison(region);  // so that what is looked at has come from the GPU
    FERRY_TRY(gpu_.Move(cuda::CopyKind::kDeviceToHost, at.begin, region.size()));
  }
  return FindWrongByte(region, at.layout, seed);
}

Result<double> PerfMemory::CopyRate(cuda::CopyKind kind, std::uint64_t bytes) {
  double best = 0;
  for (int i = 0; i < kCopies; ++i) {
    const auto begin = Clock::now();
    FERRY_TRY(gpu_.Move(kind, 0, bytes));
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    best = std::max(best, static_cast<double>(bytes) / 1e9 / seconds);
  }
  return best;
}

}  // namespace ferry::tools
