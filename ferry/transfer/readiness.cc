// Creates and signals the descriptors behind Readiness.
#include "ferry/transfer/readiness.h"

#include <fcntl.h>

#include <cerrno>
#include <utility>

#include "ferry/transfer/lane/ready_flag.h"

namespace ferry::transfer {

struct ReadinessState {
  UniqueFd fd;
  EventLoop::PassiveWait wait;
};

Readiness::Readiness(std::shared_ptr<ReadinessState> state) : state_(std::move(state)) {}

Result<int> Readiness::fd() const {
  if (state_.forked()) return MadeBeforeFork("descriptor of a queue");
  return state_->fd.get();
}

Readiness MakeReadiness(UniqueFd fd, EventLoop::PassiveWait wait) {
  return Readiness(
      std::make_shared<ReadinessState>(ReadinessState{std::move(fd), std::move(wait)}));
}

Result<UniqueFd> ReadyFlag::Descriptor(bool ready) {
  if (!event_) {
    FERRY_TRY_ASSIGN(event_, MakeEventFd());
    Set(ready);
  }
  // A duplicate, so that it may outlive the queue, and one loop may watch several.
  UniqueFd own(::fcntl(event_.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
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
