// Memory whose transfers `ferry perf` measures: host or GPU, with patterns and checks.
#pragma once
#include <cstdint>
#include <optional>
#include <span>

#include "ferry/core/config.h"
#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/tools/gpu_mirror.h"
#include "ferry/tools/mapping.h"
#include "ferry/tools/memory_choice.h"
#include "ferry/tools/perf_case.h"

namespace ferry::tools {

// Memory to measure transfers of, with a copy in host memory beside it if it is a GPU's. One
// thread.
class PerfMemory {
 public:
  // Errors: kUnavailable for more than there is, kUnsupported without GPUs, kInvalidArgument for
  // one that there is not.
  static Result<PerfMemory> Allocate(MemoryChoice choice, std::uint64_t bytes,
                                     const Config& config);

  // What is transferred.
  std::span<std::byte> bytes() const noexcept;
  // As much host memory.
  std::span<std::byte> host() const noexcept { return gpu_ ? gpu_.host() : host_.bytes(); }

  // FillPattern() of what is transferred from `begin` on, and Poison() of all of it.
  Status Fill(const LaidOut& at, std::uint64_t seed);
  Status Poison();
  // FindWrongByte() from `begin` on.
  Result<std::optional<std::uint64_t>> FindWrong(const LaidOut& at, std::uint64_t seed);
  // Of one plain copy of the first `bytes` from pinned host memory or to it, at best, in GB/s.
  Result<double> CopyRate(cuda::CopyKind kind, std::uint64_t bytes);

 private:
  // Of a GPU's memory.
  Status Upload(std::uint64_t at, std::uint64_t bytes);

  HostBuffer host_;  // empty where gpu_ is used
  GpuMirror gpu_;
};

}  // namespace ferry::tools
