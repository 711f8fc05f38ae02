// A connect() on its own thread, which the caller can wait for, poll or abandon.
#pragma once
#include <functional>
#include <memory>

#include "ferry/core/deadline.h"
#include "ferry/core/fork.h"
#include "ferry/core/result.h"
#include "ferry/transfer/connection.h"

namespace ferry::python {

// A connect() on its own thread, so that the waiting caller can be interrupted or do other work.
// Only one thread may use it at a time, with the GIL held except in Wait(). In a forked child every
// call but Abandon(), which does nothing there, fails with kInvalidArgument: the child has neither
// the thread nor the descriptor, and the thread may have held the mutex.
class ConnectAttempt {
 public:
  using Connected = Result<transfer::Connection>;
  // Starts the thread. Raises Unavailable if there is no thread or descriptor for it.
  explicit ConnectAttempt(std::function<Connected()> connect);
  ConnectAttempt(ConnectAttempt&&) noexcept = default;
  ConnectAttempt& operator=(ConnectAttempt&&) = delete;
  ~ConnectAttempt() { Abandon(); }
  // A connection that was not taken is closed as soon as it is made.
  void Abandon() noexcept;

  // Readable once it has ended.
  Result<int> fd() const;
  // Blocks until it ends. Errors: kTimedOut if it continues.
  Status Wait(Deadline deadline);
  // Takes the result; call once. Errors: the connect's own, kTimedOut if it has not ended.
  Connected Take();

 private:
  struct State;
  ProcessShared<State> state_;  // with the thread
};

}  // namespace ferry::python
