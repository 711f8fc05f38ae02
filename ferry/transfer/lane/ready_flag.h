// A queue's side of a Readiness.
#pragma once
#include "ferry/core/fd.h"
#include "ferry/core/loop/event_loop.h"
#include "ferry/core/result.h"
#include "ferry/transfer/readiness.h"

namespace ferry::transfer {

Readiness MakeReadiness(UniqueFd fd, EventLoop::PassiveWait wait);

// The descriptors of a queue. Every call is made under the mutex that guards the queue.
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
