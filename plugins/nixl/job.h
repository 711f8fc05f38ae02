// Work for a peer that waits for its connection and goes on when an operation ends.
#pragma once
#include <memory>

#include "ferry/core/result.h"
#include "ferry/transfer/connection.h"

namespace ferry::nixl {

// A transfer or a notification. Its functions do not block, and are called on any thread, several
// at once.
class Job : public std::enable_shared_from_this<Job> {
 public:
  Job() = default;
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  virtual ~Job() = default;

  // Posts the first operation: the connection is up.
  virtual void Start(const transfer::Connection& connection) = 0;
  // Ends a job that was not started.
  virtual void Fail(const Error& error) = 0;
  // Takes the next step if the operation that it waits for has ended; otherwise does nothing.
  virtual void Advance() = 0;
};

}  // namespace ferry::nixl
