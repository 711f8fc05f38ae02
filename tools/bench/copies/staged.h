// Job description and entry point of `ferry copy-bench --staged`.
#pragma once

#include "ferry/core/result.h"
#include "tools/bench/copies/copies.h"

namespace ferry::tools {

// Copies within the GPU by way of shared memory: by cp.async, and by CUDA's pipelines of a thread
// and of a thread block, with 1 to 3 stages. Checks every byte, and prints a row for each with the
// rate of the copy engine and of cp.async with as many stages in the same run. Whole tiles of the
// bytes are copied.
Status RunStagedBench(const BenchJob& job);

}  // namespace ferry::tools
