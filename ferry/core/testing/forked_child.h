// Runs part of a test in a forked child.
#pragma once
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__)
#define FERRY_SKIP_FORK_TEST() \
  GTEST_SKIP() << "ThreadSanitizer does not follow a process with threads through fork()"
#else
#define FERRY_SKIP_FORK_TEST()
#endif

namespace ferry {

// Runs `body` in a forked child, without destructors of static objects, and returns its exit
// status.
template <class Body>
int StatusOfChild(Body body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace ferry
