// Job description and entry point of `ferry copy-bench --unpack`.
#pragma once
#include <cstdint>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/result.h"
#include "ferry/unpack/unpacker.h"

namespace ferry::tools {

// The job of `ferry copy-bench --unpack`, from its command line.
struct UnpackBenchJob {
  Config config;
  int ordinal = 0;
  std::uint64_t bytes = std::uint64_t{64} << 20;  // in all
  std::uint64_t message_bytes = std::uint64_t{512} << 10;
  std::vector<std::uint64_t> fragment_bytes;
  unsigned rounds = 7;
  bool json = false;
};

// Assembles messages whose fragments lie in random places of a pool in GPU memory: with each
// method, all messages in one batch and message by message. Checks every byte, and prints a row for
// each.
Status RunUnpackBench(const UnpackBenchJob& job);

}  // namespace ferry::tools
