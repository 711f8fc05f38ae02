// Keeps exceptions inside the plug-in.
#pragma once
#include <exception>
#include <string>
#include <string_view>

#include "ferry/core/fork.h"
#include "plugins/nixl/abi.h"
#include "plugins/nixl/log.h"

namespace ferry::nixl {

// What `call` returns. The agent catches nothing: an exception, which only the lack of memory can
// cause, becomes an error. A forked child, which has none of the back end's threads, gets an error
// before `call` takes a lock. `mark`: the back end's; `what`: what failed then.
template <class Call>
abi::Outcome Guarded(std::string_view what, const ProcessMark& mark, const Call& call) noexcept {
  try {
    if (mark.forked()) {
      return Fail(std::string("cannot ").append(what), MadeBeforeFork("back end"));
    }
    return call();
  } catch (const std::exception& error) {
    Log(LogLevel::kError, "cannot do what follows: an exception was thrown");
    Log(LogLevel::kError, what);
    Log(LogLevel::kError, error.what());
  } catch (...) {
    Log(LogLevel::kError, "an unknown exception was thrown");
  }
  return abi::Outcome::kBackend;
}

}  // namespace ferry::nixl
