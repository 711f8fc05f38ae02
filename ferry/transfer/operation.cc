// Waits for, cancels and completes operations.
#include "ferry/transfer/operation.h"

#include <fmt/core.h>

#include <thread>
#include <utility>

#include "ferry/transfer/connection/connection_core.h"

namespace ferry::transfer {

Operation::Operation(std::shared_ptr<OperationState> state,
                     std::shared_ptr<ConnectionCore> connection,
                     std::shared_ptr<EndpointCore> endpoint)
    : state_(std::move(state)),
      connection_(std::move(connection)),
      endpoint_(std::move(endpoint)) {}

bool Operation::Done() const noexcept { return state_->done.load(std::memory_order_acquire); }

bool Operation::Poll() {
  if (state_.forked() || state_->done.load(std::memory_order_acquire)) return true;
  connection_->home()->DriveOnce();
  return state_->done.load(std::memory_order_acquire);
}

Status Operation::Wait(Deadline deadline) {
  if (state_.forked()) return MadeBeforeFork("operation");
  const auto done = [this] { return state_->done.load(std::memory_order_acquire); };
  if (connection_->home()->DriveUntil(done, deadline, connection_->config().spin)) {
    return state_->outcome.status;
  }
  // The loop was stopped: its endpoint is about to end operations that had not begun.
  while (!done() && !deadline.expired()) std::this_thread::yield();
  if (done()) return state_->outcome.status;
  return Error(Code::kTimedOut,
               fmt::format("{} {} to {} is still in flight after the deadline of this wait; wait "
                           "again, cancel it, or expire it to learn what it waits for",
                           OperationName(state_->kind), state_->id, connection_->peer_name()));
}

void Operation::Cancel() {
  if (state_.forked() || state_->done.load(std::memory_order_acquire)) return;
  connection_->operations().Cancel(state_.get());
}

void Operation::Expire() {
  if (state_.forked() || state_->done.load(std::memory_order_acquire)) return;
  connection_->operations().Expire(state_.get());
}

Result<int> Operation::CompletionFd() {
  if (state_.forked()) return MadeBeforeFork("operation");
  const std::lock_guard lock(state_->watchers.mutex);
  if (!state_->watchers.event) {
    FERRY_TRY_ASSIGN(state_->watchers.event, MakeEventFd());
    // Complete() takes the mutex after it has set `done`: either it or this call signals the event.
    if (Done()) {
      SignalEventFd(state_->watchers.event.get());
    } else {
      state_->watchers.wait = connection_->home()->BeginPassiveWait();
    }
  }
  return state_->watchers.event.get();
}

Status Operation::TellEnd(const std::shared_ptr<CompletionSink>& sink, std::uint64_t cookie) const {
  if (state_.forked()) return MadeBeforeFork("operation");
  const std::lock_guard lock(state_->watchers.mutex);
  // As above: Complete() tells those that are in the list when it has the mutex.
  if (Done()) {
    sink->Add(cookie);
    return Ok();
  }
  state_->watchers.told.push_back({sink, cookie});
  state_->watchers.wait = connection_->home()->BeginPassiveWait();
  return Ok();
}

PathReport Operation::path() const {
  const bool posted = state_->kind == OperationKind::kWrite || state_->kind == OperationKind::kRead;
  if (posted) return PathOf(*state_->plan);
  return {Path::kNetwork, "messages and notifications go over the lanes"};
}

Status Operation::MakeStreamWait(cuda::StreamRef stream) {
  if (state_.forked()) return MadeBeforeFork("operation");
  if (state_->done.load(std::memory_order_acquire)) return Ok();
  // Without the mutex, which the end of the operation needs: this may wait for the device, which
  // may wait for the operation.
  FERRY_TRY_ASSIGN(StreamWait hold, StreamWait::Begin(connection_->config(), stream));
  const std::lock_guard lock(state_->watchers.mutex);
  // Complete() takes the mutex after it has set `done`, and releases the waits that are in the list
  // then.
  if (!state_->done.load(std::memory_order_acquire))
    state_->watchers.held.push_back(std::move(hold));
  return Ok();
}

std::uint64_t Operation::bytes() const noexcept {
  if (state_.forked()) return 0;
  return state_->done.load(std::memory_order_acquire) ? state_->outcome.bytes : 0;
}

std::uint64_t Operation::tag() const noexcept {
  if (state_.forked()) return 0;
  return state_->done.load(std::memory_order_acquire) ? state_->outcome.tag : 0;
}

}  // namespace ferry::transfer
