// How threads that wait in poll(), or in the event loop of another library, learn that a queue has
// something for them: a connection's notifications, an endpoint's accepted connections.
#pragma once
#include <memory>

#include "ferry/core/fork.h"
#include "ferry/core/result.h"

namespace ferry::transfer {

struct ReadinessState;

// While it lives its descriptor is readable whenever there is something to take, or nothing will
// ever come again; then take without waiting. Others may take first: be ready to find nothing. The
// loop's worker drives meanwhile, as with an operation's completion descriptor.
class Readiness {
 public:
  explicit Readiness(std::shared_ptr<ReadinessState> state);

  // Errors: kInvalidArgument in a forked child, which has closed its copy of the descriptor.
  Result<int> fd() const;

 private:
  // A child does not close the number, which may be another's there.
  ProcessShared<ReadinessState> state_;  // shared by the copies of the handle
};

}  // namespace ferry::transfer
