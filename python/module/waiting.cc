// Implements waits that release the GIL and check for signals several times a second.

#include "python/module/waiting.h"

#include <fmt/core.h>
#include <pthread.h>

#include <cmath>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace ferry::python {
namespace {

struct Away {
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t threads = 0;                // that have let Python's lock go
  std::optional<std::thread::id> ending;  // the thread that ends the interpreter
  bool gave_up = false;                   // which waits no longer
};

// Never destroyed: threads that wait for it may outlive whatever ends the process. A process that
// is forked has one thread, and its mutex may be another's that it has not.
Away* away = [] {
  (void)::pthread_atfork(nullptr, nullptr, [] { away = new Away; });
  return new Away;
}();

[[noreturn]] void StayAway(std::unique_lock<std::mutex> lock) {
  for (;;) away->changed.wait(lock);
}

// Whether Python may be left: it is not being ended. Under Python's lock, which is let go without
// the mutex: who holds the mutex does not wait for it.
bool MayLeave() {
  const std::lock_guard lock(away->mutex);
  if (away->ending && *away->ending != std::this_thread::get_id()) return false;
  ++away->threads;
  return true;
}

PyThreadState* LeaveOrRaise() {
  if (MayLeave()) return PyEval_SaveThread();
  throw Raised(Error(Code::kCancelled, "the interpreter is ending, and its endpoints are closed"));
}

PyThreadState* LeaveOrStay() noexcept {
  if (MayLeave()) return PyEval_SaveThread();
  // The thread never takes the lock again, so that the interpreter can end without it.
  (void)PyEval_SaveThread();
  StayAway(std::unique_lock(away->mutex));
}

}  // namespace

OthersGoOn::OthersGoOn() : state_(LeaveOrRaise()) {}

OthersGoOn::OthersGoOn(std::nothrow_t /*stays*/) noexcept : state_(LeaveOrStay()) {}

OthersGoOn::~OthersGoOn() {
  {
    std::unique_lock lock(away->mutex);
    const bool late = away->gave_up && *away->ending != std::this_thread::get_id();
    if (late) StayAway(std::move(lock));
  }
  // Without the mutex, and before the thread is counted as back: AwaitReturns() may only return
  // once it is in Python again.
  PyEval_RestoreThread(state_);
  const std::lock_guard lock(away->mutex);
  --away->threads;
  away->changed.notify_all();
}

void OthersGoOn::AwaitReturns(Deadline deadline) {
  // The threads that are awaited need the lock to come back.
  PyThreadState* const state = PyEval_SaveThread();
  {
    std::unique_lock lock(away->mutex);
    away->ending = std::this_thread::get_id();
    away->gave_up =
        !away->changed.wait_until(lock, deadline.when(), [] { return away->threads == 0; });
  }
  PyEval_RestoreThread(state);
}

Deadline DeadlineOf(std::optional<double> seconds, Deadline otherwise) {
  if (!seconds) return otherwise;
  if (std::isnan(*seconds) || *seconds < 0) {
    throw Raised(Error(Code::kInvalidArgument,
                       fmt::format("timeout is {}; give seconds, 0 or more, or None", *seconds)));
  }
  return Deadline::After(std::chrono::duration<double>(*seconds));
}

}  // namespace ferry::python
