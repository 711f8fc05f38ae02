// Job description and entry point of `ferry kernel-bench`.
#pragma once
#include <string>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/result.h"

namespace ferry::tools {

// What `ferry kernel-bench` was told to measure.
struct KernelBenchJob {
  Config config;
  int ordinal = 0;
  std::vector<std::string> ops;  // none: all
  double seconds = 0.05;         // of samples, for each row; 10 times as long at most
  bool list = false;             // the rows, and nothing is measured
  bool tiny = false;             // sizes for machines without a GPU
  bool json = false;             // an object for each row, in place of the table
};

// Times each op at each of its sizes, beside what copies move in the same run, and prints a row for
// each. What fails is told in its row, and the others go on. Errors: kInvalidArgument for ops that
// there are not; those of DeviceApi; kInternal at the end, for rows that failed. After kTimedOut a
// kernel still runs, for which an orderly end of the process would wait: leave by std::_Exit().
Status RunKernelBench(const KernelBenchJob& job);

}  // namespace ferry::tools
