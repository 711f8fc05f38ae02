// A connect() on its own thread, which the caller can wait for, poll or abandon.
#pragma once
#include <functional>
#include <memory>

#include "ferry/core/deadline.h"
#include "ferry/core/fork.h"
#include "ferry/core/result.h"
#include "ferry/transfer/connection.h"

namespace ferry::python {

// A connect() on a thread of its own, so that whoever waits for it can be interrupted, or can do
// other things meanwhile. One thread at a time, under the interpreter's lock except for Wait(). In
// a forked child every call but Abandon(), which does nothing there, fails with kInvalidArgument:
// the child has neither the thread nor the descriptor, and the thread may have held the mutex.
class ConnectAttempt {
 public:
  using Connected = Result<transfer::Connection>;
  // Begins. Raises Unavailable where there is no thread or descriptor for it.
  explicit ConnectAttempt(std::function<Connected()> connect);
  ConnectAttempt(ConnectAttempt&&) noexcept = default;
  ConnectAttempt& operator=(ConnectAttempt&&) = delete;
  ~ConnectAttempt() { Abandon(); }
  // A connection that nobody has taken is closed, as soon as it is there.
  void Abandon() noexcept;

  // Readable once it has ended.
  Result<int> fd() const;
  // kTimedOut where it goes on.
  Status Wait(Deadline deadline);
  // How it has ended; once. Errors: its own, kTimedOut where it has not ended.
  Connected Take();

 private:
  struct State;
  ProcessShared<State> state_;  // with the thread
};

}  // namespace ferry::python
