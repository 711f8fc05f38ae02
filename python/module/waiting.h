// Waits that let other Python threads run and that Ctrl-C ends.
#pragma once
#include <nanobind/nanobind.h>

#include <chrono>
#include <new>
#include <optional>

#include "ferry/core/deadline.h"
#include "ferry/core/result.h"
#include "python/module/errors.h"

namespace ferry::python {

// Seconds from now; None: `otherwise`. A number that is none, or below zero, is an error.
Deadline DeadlineOf(std::optional<double> seconds, Deadline otherwise = Deadline::Never());

// While it lives Python's other threads go on, as with nanobind's gil_scoped_release. From
// AwaitReturns() on, which is for the interpreter's end, other threads begin none: the interpreter
// would end them in the middle of C++, and the process with them.
class OthersGoOn {
 public:
  // Raises Cancelled after AwaitReturns() in another thread.
  OthersGoOn();
  // For destructors: does not come back then.
  explicit OthersGoOn(std::nothrow_t) noexcept;
  ~OthersGoOn();
  OthersGoOn(const OthersGoOn&) = delete;
  OthersGoOn& operator=(const OthersGoOn&) = delete;

  // Until all that other threads have begun have ended. Those that have not by the deadline never
  // come back. Called with Python's lock.
  static void AwaitReturns(Deadline deadline);

 private:
  PyThreadState* const state_;
};

// How long a KeyboardInterrupt may have to wait.
inline constexpr milliseconds kSignalsEvery{50};

// Calls `wait(deadline)`, which says kTimedOut when that has passed, for as long as it takes until
// `deadline`, in parts between which Python's signal handlers run.
template <class Wait>
auto WaitInParts(Deadline deadline, Wait wait) {
  for (;;) {
    const Deadline part = Deadline::After(kSignalsEvery).Sooner(deadline);
    auto result = [&] {
      const OthersGoOn others_go_on;
      return wait(part);
    }();
    const bool again = !result && result.error().code() == Code::kTimedOut && !deadline.expired();
    if (!again) return result;
    if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
  }
}

}  // namespace ferry::python
