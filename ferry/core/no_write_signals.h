// Suppression of the signals that a write raises, for one system call.
#pragma once
#include <pthread.h>

#include <cerrno>
#include <csignal>
#include <ctime>

namespace ferry {

// write(2) and splice(2) raise SIGPIPE when the reader has closed, and have no MSG_NOSIGNAL; a file
// at the limit of `ulimit -f` raises SIGXFSZ, and a terminal with `stty tostop` stops processes in
// the background by SIGTTOU. The dispositions of these signals belong to the application, so they
// are blocked for this thread while this object lives.
class NoWriteSignals {
 public:
  NoWriteSignals() noexcept {
    sigset_t before;
    sigpending(&before);
    sigset_t all;
    sigemptyset(&all);
    sigemptyset(&ours_);
    for (const int signal : {SIGPIPE, SIGXFSZ, SIGTTOU}) {
      sigaddset(&all, signal);
      // One that was pending before is the application's, and stays.
      if (sigismember(&before, signal) == 0) sigaddset(&ours_, signal);
    }
    ::pthread_sigmask(SIG_BLOCK, &all, &mask_);
  }
  ~NoWriteSignals() {
    const int kept = errno;
    const timespec now{};
    while (raised_ && (::sigtimedwait(&ours_, nullptr, &now) >= 0 || errno == EINTR)) {
    }
    ::pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
    errno = kept;
  }
  NoWriteSignals(const NoWriteSignals&) = delete;
  NoWriteSignals& operator=(const NoWriteSignals&) = delete;

  // Call when a signal may have been raised: the destructor then consumes it.
  void MayBeRaised() noexcept { raised_ = true; }

 private:
  sigset_t ours_{};
  sigset_t mask_{};
  bool raised_ = false;
};

}  // namespace ferry
