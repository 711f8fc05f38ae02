// Prints a failed FERRY_CHECK and aborts.
#include "ferry/core/check.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "ferry/core/stderr_line.h"

namespace ferry::internal {

void CheckFailed(const char* expression, const std::string& values, SourceLoc at) {
  // No log: the logger may be what has failed, and its lock may be held.
  char line[1024];
  const int length =
      std::snprintf(line, sizeof line, "%s:%d: check failed: %s%s%s", at.file, at.line, expression,
                    values.empty() ? "" : " with", values.c_str());
  const auto bytes = std::min(static_cast<std::size_t>(std::max(length, 0)), sizeof line - 1);
  line[bytes] = '\n';
  (void)WriteStderr({line, bytes + 1});
  std::abort();
}

}  // namespace ferry::internal
