// Owned descriptors, eventfds and errors made from errno.
#include "ferry/core/fd.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "ferry/core/fork.h"

namespace ferry {
namespace {

Code CodeOfErrno(int error_number) {
  switch (error_number) {
    case EACCES:
    case EPERM: return Code::kRefused;
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case EPIPE:
    case ENETUNREACH:
    case EHOSTUNREACH: return Code::kPeerLost;
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
    case EADDRINUSE:
    case EADDRNOTAVAIL: return Code::kUnavailable;
    case ETIMEDOUT: return Code::kTimedOut;
    // Errors that only a wrong call can have: EBADF, EINVAL, ENOENT ...
    default: return Code::kInvalidArgument;
  }
}

}  // namespace

void FdTraits::Destroy(Handle fd) noexcept {
  // Before close(), after which another thread may get the same number for a descriptor of its own.
  StopClosingInChildren(fd);
  (void)::close(fd);
}

UniqueFd ClosedInChildren(UniqueFd fd) noexcept {
  // Where the program has closed its stderr, a socket must not get that number: whatever else
  // writes to stderr would write into the stream.
  if (fd && fd.get() <= STDERR_FILENO) {
    const int error = errno;
    if (UniqueFd moved(::fcntl(fd.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1)); moved)
      fd.swap(moved);
    errno = error;
  }
  CloseInChildren(fd.get());
  return fd;
}

Error ErrnoError(const std::string& what, int error_number, SourceLoc at) {
  return Error(CodeOfErrno(error_number),
               fmt::format("{}: {} (errno {})", what, std::generic_category().message(error_number),
                           error_number),
               at);
}

Result<UniqueFd> MakeEventFd() {
  UniqueFd fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!fd) return ErrnoError("eventfd", errno);
  return ClosedInChildren(std::move(fd));
}

void SignalEventFd(int fd) noexcept {
  const std::uint64_t one = 1;
  // EAGAIN means the count is at its maximum: the reader is signalled already.
  while (::write(fd, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void DrainEventFd(int fd) noexcept {
  std::uint64_t count = 0;
  while (::read(fd, &count, sizeof count) < 0 && errno == EINTR) {
  }
}

}  // namespace ferry
