#include "bindings/python/waiting.h"

#include <fmt/core.h>

#include <cmath>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

namespace ferry::python {
namespace {

// Never destroyed: threads that wait for it may outlive whatever ends the process.
struct Away {
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t threads = 0;                // that have let Python's lock go
  std::optional<std::thread::id> ending;  // the thread that ends the interpreter
};

Away& ThreadsAway() {
  static auto* const away = new Away;
  return *away;
}

// The lock is let go in between: it may be waited for by who holds the mutex.
PyThreadState* LeavePython() noexcept {
  Away& away = ThreadsAway();
  {
    const std::lock_guard lock(away.mutex);
    ++away.threads;
  }
  PyThreadState* const state = PyEval_SaveThread();
  std::unique_lock lock(away.mutex);
  const bool last = away.ending && *away.ending != std::this_thread::get_id();
  if (!last) return state;
  --away.threads;
  away.changed.notify_all();
  for (;;) away.changed.wait(lock);
}

}  // namespace

OthersGoOn::OthersGoOn() noexcept : state_(LeavePython()) {}

OthersGoOn::~OthersGoOn() {
  PyEval_RestoreThread(state_);
  Away& away = ThreadsAway();
  const std::lock_guard lock(away.mutex);
  --away.threads;
  away.changed.notify_all();
}

void OthersGoOn::AwaitReturns(Deadline deadline) {
  Away& away = ThreadsAway();
  PyThreadState* const state = PyEval_SaveThread();
  {
    std::unique_lock lock(away.mutex);
    away.ending = std::this_thread::get_id();
    (void)away.changed.wait_until(lock, deadline.when(), [&] { return away.threads == 0; });
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
