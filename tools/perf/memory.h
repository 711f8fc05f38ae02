// Memory whose transfers `ferry perf` measures: host or GPU, with patterns and checks.
#pragma once
#include <cstdint>
#include <optional>
#include <span>

#include "ferry/core/config.h"
#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "tools/perf/case.h"
#include "tools/support/gpu_mirror.h"
#include "tools/support/mapping.h"
#include "tools/support/memory_choice.h"

namespace ferry::tools {

// Memory whose transfers are measured; GPU memory has a host copy beside it. For one thread.
class PerfMemory {
 public:
  // Errors: kUnavailable if memory is short, kUnsupported without GPUs, kInvalidArgument for a GPU
  // that does not exist.
  static Result<PerfMemory> Allocate(MemoryChoice choice, std::uint64_t bytes,
                                     const Config& config);

  // The memory to transfer.
  std::span<std::byte> bytes() const noexcept;
  // Host memory of the same size.
  std::span<std::byte> host() const noexcept { return gpu_ ? gpu_.host() : host_.bytes(); }

  // Apply FillPattern() to the memory from `begin` on, and Poison() to all of it.
  Status Fill(const LaidOut& at, std::uint64_t seed);
  Status Poison();
  // FindWrongByte() on the memory from `begin` on.
  Result<std::optional<std::uint64_t>> FindWrong(const LaidOut& at, std::uint64_t seed);
  // Best rate of one plain copy of the first `bytes` bytes from or to pinned host memory, in GB/s.
  Result<double> CopyRate(cuda::CopyKind kind, std::uint64_t bytes);

 private:
  // Present for GPU memory only.
  Status Upload(std::uint64_t at, std::uint64_t bytes);

  HostBuffer host_;  // empty where gpu_ is used
  GpuMirror gpu_;
};

}  // namespace ferry::tools
