// The state of an operation: how it ends, and who is told.
#include "ferry/transfer/lane/operation_state.h"

#include <utility>

#include "ferry/core/check.h"

namespace ferry::transfer {

void OperationState::Complete(Status result) {
  FERRY_CHECK(!done.load(), id);
  outcome.status = std::move(result);
  done.store(true, std::memory_order_release);
  const std::lock_guard lock(watchers.mutex);
  if (watchers.event) SignalEventFd(watchers.event.get());
  for (const Watchers::Told& told : watchers.told) told.sink->Add(told.cookie);
  watchers.told.clear();
  watchers.wait = {};
  watchers.held.clear();
}

}  // namespace ferry::transfer
