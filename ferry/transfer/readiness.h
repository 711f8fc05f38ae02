#pragma once
#include <memory>
#include <utility>

#include "ferry/core/event_loop.h"
#include "ferry/core/fd.h"
#include "ferry/core/fork.h"
#include "ferry/core/result.h"

// How threads that wait in poll(), or in the event loop of another library, learn that a queue has
// something for them: a connection's notifications, an endpoint's accepted connections.
namespace ferry::transfer {

// While it lives its descriptor is readable whenever there is something to take, or nothing will
// ever come again; then take without waiting. Others may take first: be ready to find nothing. The
// loop's worker drives meanwhile, as with an operation's completion descriptor.
class Readiness {
 public:
  Readiness(UniqueFd fd, EventLoop::PassiveWait wait)
      : state_(std::make_shared<State>(State{std::move(fd), std::move(wait)})) {}

  // Errors: kInvalidArgument in a forked child, which has closed its copy of the descriptor.
  Result<int> fd() const {
    if (state_.forked()) return MadeBeforeFork("descriptor of a queue");
    return state_->fd.get();
  }

 private:
  struct State {
    UniqueFd fd;
    EventLoop::PassiveWait wait;
  };
  ProcessShared<State> state_;  // a child does not close the number, which may be another's there
};

// A queue's side of that. Every call is made under the mutex that guards the queue.
class ReadyFlag {
 public:
  // A descriptor of the caller's own. `ready`: whether there is something now. Errors: kUnavailable
  // (descriptors).
  Result<UniqueFd> Descriptor(bool ready);
  // Costs nothing until somebody has asked for a descriptor.
  void Set(bool ready) noexcept;

 private:
  UniqueFd event_;  // made for the first descriptor
};

}  // namespace ferry::transfer
