// Collects what this process writes to one of its outputs.
#pragma once
#include <string>

#include "ferry/core/fd.h"

namespace ferry::tools {

// Redirects a standard output of this process to memory until Take() or destruction. One at a time
// for each output; threads of the test may write meanwhile.
class CapturedOutput {
 public:
  // `fd`: STDOUT_FILENO or STDERR_FILENO.
  explicit CapturedOutput(int fd);
  CapturedOutput(const CapturedOutput&) = delete;
  CapturedOutput& operator=(const CapturedOutput&) = delete;
  ~CapturedOutput();

  // Restores the output and returns what was written.
  std::string Take();

 private:
  void Restore();

  const int fd_;
  UniqueFd before_;  // none once it is restored
  UniqueFd written_;
};

}  // namespace ferry::tools
