// Job description and entry point of `ferry copy-bench`.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/result.h"

namespace ferry::tools {

// What all jobs of `ferry copy-bench` have.
struct BenchJob {
  Config config;
  int ordinal = 0;
  std::uint64_t bytes = std::uint64_t{64} << 20;  // in all
  unsigned rounds = 7;
  bool json = false;
};

// The job of `ferry copy-bench`: each direction with each executor, at each block size. "prepared"
// is a list that was prepared in advance (PrepareCopy).
struct CopyBenchJob : BenchJob {
  std::vector<std::string> directions;  // "H2D", "D2H", "D2D", "duplex"
  std::vector<std::string> executors;   // "dma", "kernel", "prepared"
  // Layout of the host's side of duplex: "scattered" like the GPU's, or "contiguous" like a staging
  // buffer.
  std::vector<std::string> host_sides;
  std::vector<std::uint64_t> block_sizes;
  std::uint64_t ceiling_bytes = std::uint64_t{256} << 20;  // of the one copy of each direction
};

// Copies shuffled blocks with gaps between them, checks every byte, and prints a row for each, with
// the bandwidth of one copy of all bytes in the same run.
Status RunCopyBench(const CopyBenchJob& job);

}  // namespace ferry::tools
