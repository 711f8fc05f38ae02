// Suppression of SIGPIPE for one system call.
#pragma once
#include <pthread.h>

#include <cerrno>
#include <csignal>
#include <ctime>

namespace ferry {

// write(2) and splice(2) raise SIGPIPE when the reader has closed, and have no MSG_NOSIGNAL. The
// disposition of that signal belongs to the application, so it is blocked for this thread while
// this object lives.
class NoSigPipe {
 public:
  NoSigPipe() noexcept {
    sigset_t before;
    // A SIGPIPE that was pending before is the application's, and stays.
    sigpending(&before);
    was_pending_ = sigismember(&before, SIGPIPE) == 1;
    sigemptyset(&only_);
    sigaddset(&only_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &only_, &mask_);
  }
  ~NoSigPipe() {
    const int kept = errno;
    if (raised_ && !was_pending_) {
      const timespec now{};
      while (::sigtimedwait(&only_, nullptr, &now) < 0 && errno == EINTR) {
      }
    }
    ::pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
    errno = kept;
  }
  NoSigPipe(const NoSigPipe&) = delete;
  NoSigPipe& operator=(const NoSigPipe&) = delete;

  // Call when the signal may have been raised: the destructor then consumes it.
  void MayBeRaised() noexcept { raised_ = true; }

 private:
  sigset_t only_{};
  sigset_t mask_{};
  bool was_pending_ = false;
  bool raised_ = false;
};

}  // namespace ferry
