// Thread creation that reports exhaustion as an error.
#pragma once
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "ferry/core/result.h"

namespace ferry {

// kUnavailable: the system started no thread for `what`, for the reason of this errno. Says how
// many threads there are, and the limits that may be reached.
Error CannotStartThread(std::string_view what, int error_number);

// Runs `run` on a thread of its own. Every thread of the library starts here, because the
// constructors of std::thread throw where the system has no more. `what` names it in errors, "a
// worker". Errors: kUnavailable.
template <class Thread = std::thread, class Run>
Result<Thread> StartThread(std::string_view what, Run run) {
  try {
    return Thread(std::move(run));
  } catch (const std::system_error& error) {
    return CannotStartThread(what, error.code().value());
  }
}

}  // namespace ferry
