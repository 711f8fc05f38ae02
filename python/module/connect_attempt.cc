// Implements connects that run on their own thread and signal their end by a descriptor.

#include "python/module/connect_attempt.h"

#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>

#include "ferry/core/fd.h"
#include "ferry/core/loop/thread.h"
#include "python/module/errors.h"
#include "python/module/waiting.h"

namespace ferry::python {
namespace {

Error AttemptMadeBeforeFork() { return MadeBeforeFork("connection attempt"); }

}  // namespace

struct ConnectAttempt::State {
  UniqueFd ended_event;
  std::mutex mutex;
  std::condition_variable ended;
  std::optional<Connected> result;  // under mutex
  bool abandoned = false;           // under mutex: nobody will take a result
};

ConnectAttempt::ConnectAttempt(std::function<Connected()> connect)
    : state_(std::make_shared<State>()) {
  state_->ended_event = python::Take(MakeEventFd());
  auto thread =
      StartThread("connect()", [state = state_.get(), connect = std::move(connect)]() mutable {
        Connected result = connect();
        {
          const std::lock_guard lock(state->mutex);
          // Under the mutex, either this thread or Abandon() gets the result, and closes it if it
          // is unwanted. The thread touches nothing of Python's, which may have ended.
          if (!state->abandoned) {
            state->result.emplace(std::move(result));
            state->ended.notify_all();
            SignalEventFd(state->ended_event.get());
            return;
          }
        }
        if (result) result->Close();
      });
  if (!thread) throw Raised(thread.error());
  thread->detach();
}

void ConnectAttempt::Abandon() noexcept {
  if (!state_ || state_.forked()) return;
  std::optional<Connected> unwanted;
  {
    const std::lock_guard lock(state_->mutex);
    state_->abandoned = true;
    unwanted = std::exchange(state_->result, std::nullopt);
  }
  if (!unwanted || !*unwanted) return;
  const OthersGoOn others_go_on(std::nothrow);
  (*unwanted)->Close();
}

Result<int> ConnectAttempt::fd() const {
  if (state_.forked()) return AttemptMadeBeforeFork();
  return state_->ended_event.get();
}

Status ConnectAttempt::Wait(Deadline deadline) {
  if (state_.forked()) return AttemptMadeBeforeFork();
  std::unique_lock lock(state_->mutex);
  state_->ended.wait_until(lock, deadline.when(), [&] { return state_->result.has_value(); });
  if (state_->result) return Ok();
  return Error(Code::kTimedOut, "connecting goes on; wait longer");
}

ConnectAttempt::Connected ConnectAttempt::Take() {
  if (state_.forked()) return AttemptMadeBeforeFork();
  const std::lock_guard lock(state_->mutex);
  if (!state_->result) return Error(Code::kTimedOut, "connecting goes on; wait longer");
  return *std::exchange(state_->result, std::nullopt);
}

}  // namespace ferry::python
