// Prints a failed FERRY_CHECK and aborts.
#include "ferry/core/check.h"

#include <cstdio>
#include <cstdlib>

namespace ferry::internal {

void CheckFailed(const char* expression, const std::string& values, SourceLoc at) {
  std::fprintf(stderr, "%s:%d: check failed: %s%s%s\n", at.file, at.line, expression,
               values.empty() ? "" : " with", values.c_str());
  // No log: the logger may be what has failed, and its lock may be held.
  std::abort();
}

}  // namespace ferry::internal
