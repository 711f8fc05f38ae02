#include "ferry/tools/perf_memory.h"

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
  FERRY_TRY(memory.Upload());
  return memory;
}

std::span<std::byte> PerfMemory::bytes() const noexcept {
  return gpu_ ? gpu_.device() : host_.bytes();
}

Status PerfMemory::Upload() {
  return gpu_ ? gpu_.Move(cuda::CopyKind::kHostToDevice, 0, gpu_.device().size()) : Ok();
}

Status PerfMemory::Fill(const Layout& layout, std::uint64_t seed) {
  FillPattern(host(), layout, seed);
  return Upload();
}

Status PerfMemory::Poison() {
  tools::Poison(host());
  return Upload();
}

Result<bool> PerfMemory::Holds(const Layout& layout, std::uint64_t seed) {
  if (gpu_) {
    tools::Poison(host());  // so that what is looked at has come from the GPU
    FERRY_TRY(gpu_.Move(cuda::CopyKind::kDeviceToHost, 0, gpu_.device().size()));
  }
  return !FindWrongBlock(host(), layout, seed).has_value();
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
