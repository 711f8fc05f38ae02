// The state of an operation: how it ends, and who is told.
#include "ferry/transfer/engine/operation_state.h"

#include <utility>

#include "ferry/core/check.h"

namespace ferry::transfer {

void OperationState::Complete(Status result) {
  FERRY_CHECK(!done.load(), id);
  status = std::move(result);
  done.store(true, std::memory_order_release);
  const std::lock_guard lock(event_mutex);
  if (event) SignalEventFd(event.get());
  wait = {};
  held.clear();
}

}  // namespace ferry::transfer
