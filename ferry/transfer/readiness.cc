#include "ferry/transfer/readiness.h"

#include <fcntl.h>

#include <cerrno>
#include <utility>

#include "ferry/transfer/ready_flag.h"

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
  // Its own number, so that it may outlive the queue, and a loop may watch it beside others.
  UniqueFd own(::fcntl(event_.get(), F_DUPFD_CLOEXEC, 0));
  if (!own) return ErrnoError("a descriptor to wait by cannot be made", errno);
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
