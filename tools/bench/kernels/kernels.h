// Job description and entry point of `ferry kernel-bench`.
#pragma once
#include <string>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/result.h"

namespace ferry::tools {

// The job of `ferry kernel-bench`, from its command line.
struct KernelBenchJob {
  Config config;
  int ordinal = 0;
  std::vector<std::string> ops;  // none: all
  double seconds = 0.05;         // of samples, for each row; 10 times as long at most
  bool list = false;             // the rows, and nothing is measured
  bool tiny = false;             // sizes for machines without a GPU
  bool json = false;             // an object for each row, in place of the table
};

// Times each op at each of its sizes, measures copy bandwidth in the same run, and prints a row for
// each. A failure is reported in its row, and the other rows continue. Errors: kInvalidArgument for
// unknown ops; those of DeviceApi; kInternal at the end if rows failed. After kTimedOut a kernel is
// still running and a normal exit would wait for it: leave by std::_Exit().
Status RunKernelBench(const KernelBenchJob& job);

}  // namespace ferry::tools
