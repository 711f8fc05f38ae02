// Job description and entry point of `ferry copy-bench --pipeline`.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "ferry/core/result.h"
#include "tools/bench/copies/copies.h"

namespace ferry::tools {

// The job of `ferry copy-bench --pipeline`, from its command line.
struct PipelineBenchJob : BenchJob {
  std::size_t chunk_bytes = std::size_t{4} << 20;
  int staging_threads = 4;  // of pageable memory
  std::string trace = {};   // a file for the timeline of one run of each row; empty: none
};

// Copies pageable and pinned memory to the GPU, runs a kernel on it that takes about as long as a
// copy, and copies it back: one step at a time, and by a pipeline of 1 to 4 streams. Checks every
// byte, and prints a row for each.
Status RunPipelineBench(const PipelineBenchJob& job);

}  // namespace ferry::tools
