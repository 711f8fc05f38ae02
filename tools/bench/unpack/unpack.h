// Job description and entry point of `ferry copy-bench --unpack`.
#pragma once
#include <cstdint>
#include <vector>

#include "ferry/core/result.h"
#include "tools/bench/copies/copies.h"

namespace ferry::tools {

// The job of `ferry copy-bench --unpack`, from its command line.
struct UnpackBenchJob : BenchJob {
  std::uint64_t message_bytes = std::uint64_t{512} << 10;
  std::vector<std::uint64_t> fragment_bytes = {};
};

// Assembles messages whose fragments lie in random places of a pool in GPU memory: with each
// method, all messages in one batch and message by message. Checks every byte, and prints a row for
// each.
Status RunUnpackBench(const UnpackBenchJob& job);

// Assembles messages of as many fragments as there may be from their rows in pinned memory, which
// the GPU reads: one call, and 20 that follow each other. Compares with a prepared list and with
// blocks that the CPU makes of the rows, checks every byte, and prints a row for each size.
Status RunRowsBench(const UnpackBenchJob& job);

// Assembles the same messages by each Rung (unpack_ladder.h), from the slowest way to call a kernel
// to the fastest. Checks every byte, and prints a row for each rung and size.
Status RunUnpackLadder(const UnpackBenchJob& job);

}  // namespace ferry::tools
