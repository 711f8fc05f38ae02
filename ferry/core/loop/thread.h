// Thread creation that reports exhaustion as an error.
#pragma once
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "ferry/core/result.h"

namespace ferry {

// The error (kUnavailable) for a thread that the system did not start for `what`, with the reason
// of this errno, the number of threads, and the limits that may have been reached.
Error CannotStartThread(std::string_view what, int error_number);

// Runs `run` on a new thread. The library starts all its threads here, because the constructor of
// std::thread throws when the system has no more. `what` names the thread in errors: "a worker".
// Errors: kUnavailable.
template <class Thread = std::thread, class Run>
Result<Thread> StartThread(std::string_view what, Run run) {
  try {
    return Thread(std::move(run));
  } catch (const std::system_error& error) {
    return CannotStartThread(what, error.code().value());
  }
}

}  // namespace ferry
