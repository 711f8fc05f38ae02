// Job description and entry point of `ferry copy-bench --pipeline`.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "ferry/core/config.h"
#include "ferry/core/result.h"

namespace ferry::tools {

// The job of `ferry copy-bench --pipeline`, from its command line.
struct PipelineBenchJob {
  Config config;
  int ordinal = 0;
  std::uint64_t bytes = std::uint64_t{256} << 20;
  std::size_t chunk_bytes = std::size_t{4} << 20;
  int staging_threads = 4;  // of pageable memory
  unsigned rounds = 7;
  std::string trace;  // a file for the timeline of one run of each row; empty: none
  bool json = false;
};

// Copies pageable and pinned memory to the GPU, runs a kernel on it that takes about as long as a
// copy, and copies it back: one step at a time, and by a pipeline of 1 to 4 streams. Checks every
// byte, and prints a row for each.
Status RunPipelineBench(const PipelineBenchJob& job);

}  // namespace ferry::tools
