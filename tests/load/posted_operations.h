// Operations in flight and the checks that each ends once and in time.
#pragma once
#include <string>
#include <vector>

#include "tests/support/engine_peer.h"

namespace ferry::tests {

// Operations in flight, and checks of the promise that each ends once and in time.
class PostedOperations {
 public:
  // Throws if the post failed.
  void Add(const std::string& what, Result<transfer::Operation> operation);

  // Waits for all of them, which should end with `code` within `bound` of the start of `since`.
  void ExpectAllEnd(Code code, const Stopwatch& since, milliseconds bound);
  // Call at the very end: no operation has signalled its end a second time.
  void ExpectEndedOnce();

 private:
  struct Posted {
    std::string what;
    transfer::Operation operation;
    int completion = -1;
    std::uint64_t ends = 0;
  };
  std::vector<Posted> posted_;
};

}  // namespace ferry::tests
