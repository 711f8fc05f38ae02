// Job description and entry point of `ferry copy-bench --staged`.
#pragma once
#include <cstdint>

#include "ferry/core/config.h"
#include "ferry/core/result.h"

namespace ferry::tools {

struct StagedBenchJob {
  Config config;
  int ordinal = 0;
  std::uint64_t bytes = std::uint64_t{64} << 20;  // whole tiles of it are copied
  unsigned rounds = 7;
  bool json = false;
};

// Copies within the GPU by way of shared memory: by cp.async, and by CUDA's pipelines of a thread
// and of a thread block, with 1 to 3 stages. Checks every byte, and prints a row for each with the
// rate of the copy engine and of cp.async with as many stages in the same run.
Status RunStagedBench(const StagedBenchJob& job);

}  // namespace ferry::tools
