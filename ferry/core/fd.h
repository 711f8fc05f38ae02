// Owned file descriptors, eventfds and errors made from errno.
#pragma once
#include <cstdint>
#include <string>

#include "ferry/core/result.h"
#include "ferry/core/unique_handle.h"

namespace ferry {

struct FdTraits {
  using Handle = int;
  static constexpr Handle kInvalid = -1;
  static void Destroy(Handle fd) noexcept;
};
// Owns a file descriptor. Ignores errors of close(2): nothing here relies on close() for data.
using UniqueFd = UniqueHandle<FdTraits>;

// An Error whose message is "<what>: <strerror> (errno N)"; the code follows from errno: EACCES and
// EPERM are kRefused, ECONN* and EPIPE kPeerLost, EMFILE and ENOMEM kUnavailable, ETIMEDOUT
// kTimedOut, others kInvalidArgument.
Error ErrnoError(const std::string& what, int error_number, SourceLoc at = SourceLoc::Current());

// Has fork() close the descriptor in children (fork.h), and moves it above those of standard I/O.
UniqueFd ClosedInChildren(UniqueFd fd) noexcept;

// A non-blocking, close-on-exec eventfd with count 0, closed in forked children.
Result<UniqueFd> MakeEventFd();
// Adds one to an eventfd; never blocks and never loses a wake-up.
void SignalEventFd(int fd) noexcept;
// Sets an eventfd's count back to 0.
void DrainEventFd(int fd) noexcept;

}  // namespace ferry
