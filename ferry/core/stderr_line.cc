// Writes to stderr without blocking, whatever it is.
#include "ferry/core/stderr_line.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "ferry/core/fd.h"
#include "ferry/core/no_write_signals.h"

namespace ferry::internal {
namespace {

// Whether descriptor 2 was open when the library was loaded. Where it was not, whatever has that
// number since then is the application's own.
bool HasStderr() noexcept {
  static const bool open = ::fcntl(STDERR_FILENO, F_GETFD) >= 0;
  return open;
}
[[maybe_unused]] const bool kHadStderr = HasStderr();  // asks at load

// For a pipe or terminal. poll(2) alone is not enough: other processes write to the same pipe. The
// flag O_NONBLOCK would apply to them, too, unless this process opens the pipe again.
ssize_t WriteToPipe(std::string_view bytes) noexcept {
  const UniqueFd own(::open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (own) return ::write(own.get(), bytes.data(), bytes.size());
  // Without the right to open it, which a process that has changed its user lacks.
  pollfd room{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  if (::poll(&room, 1, 0) != 1 || (room.revents & POLLOUT) == 0) return -1;
  // A pipe that polls as writable has a free page; more could block.
  return ::write(STDERR_FILENO, bytes.data(), std::min<std::size_t>(bytes.size(), PIPE_BUF));
}

ssize_t WriteOnce(std::string_view bytes) noexcept {
  struct stat about {};
  if (!HasStderr() || ::fstat(STDERR_FILENO, &about) != 0) return -1;
  switch (about.st_mode & S_IFMT) {
    case S_IFREG: return ::write(STDERR_FILENO, bytes.data(), bytes.size());
    case S_IFIFO:
    case S_IFCHR: return WriteToPipe(bytes);
    case S_IFSOCK: break;
    default: return -1;
  }
  // journald's stderr is a Unix socket. An Internet socket is one that the application, or a
  // library, has opened since stderr was closed.
  int domain = 0;
  socklen_t length = sizeof domain;
  (void)::getsockopt(STDERR_FILENO, SOL_SOCKET, SO_DOMAIN, &domain, &length);
  if (domain != AF_UNIX) return -1;
  return ::send(STDERR_FILENO, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace

std::size_t WriteStderr(std::string_view bytes) noexcept {
  const int kept = errno;
  NoWriteSignals no_signal;
  ssize_t written = 0;
  do {
    written = WriteOnce(bytes);
  } while (written < 0 && errno == EINTR);
  if (written < 0) no_signal.MayBeRaised();
  errno = kept;
  return written < 0 ? 0 : static_cast<std::size_t>(written);
}

}  // namespace ferry::internal
