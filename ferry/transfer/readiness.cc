// Creates and signals the descriptors behind Readiness.
#include "ferry/transfer/readiness.h"

#include <fcntl.h>

#include <cerrno>
#include <utility>

namespace ferry::transfer {

Result<UniqueFd> ReadyFlag::Descriptor(bool ready) {
  if (!event_) {
    FERRY_TRY_ASSIGN(event_, MakeEventFd());
    Set(ready);
  }
  // A duplicate, so that it may outlive the queue, and one loop may watch several.
  UniqueFd own(::fcntl(event_.get(), F_DUPFD_CLOEXEC, 0));
  if (!own) return ErrnoError("cannot create a descriptor to wait on", errno);
  return ClosedInChildren(std::move(own));
}

void ReadyFlag::Set(bool ready) noexcept {
  if (!event_) return;
  if (ready) {
    SignalEventFd(event_.get());
  } else {
    DrainEventFd(event_.get());
  }
}

}  // namespace ferry::transfer
