// Descriptors for poll() that tell when a queue has an item.
#pragma once
#include <memory>
#include <utility>

#include "ferry/core/event_loop.h"
#include "ferry/core/fd.h"
#include "ferry/core/fork.h"
#include "ferry/core/result.h"

// Lets threads in poll(), or in another library's event loop, learn that a queue has an item: a
// connection's notifications, an endpoint's accepted connections.
namespace ferry::transfer {

// Owns a descriptor that is readable while there is an item to take, or no item will ever come
// again; then call the take function, which does not block. Another thread may be first: expect to
// find nothing. While it exists the loop's worker drives the loop, as for an operation's completion
// descriptor.
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
  ProcessShared<State> state_;  // a child must not close it: the number may be reused there
};

// The queue's side of a Readiness. Every call must hold the mutex that guards the queue.
class ReadyFlag {
 public:
  // A descriptor owned by the caller. `ready`: whether there is an item now. Errors: kUnavailable
  // (out of file descriptors).
  Result<UniqueFd> Descriptor(bool ready);
  // Costs nothing until a descriptor was requested.
  void Set(bool ready) noexcept;

 private:
  UniqueFd event_;  // created with the first descriptor
};

}  // namespace ferry::transfer
