// Implements the checks of operations in flight.

#include "tests/load/posted_operations.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <utility>

namespace ferry::tests {
namespace {

// The count of the eventfd since its last read.
std::uint64_t CountOf(int eventfd) {
  std::uint64_t count = 0;
  return ::read(eventfd, &count, sizeof count) == sizeof count ? count : 0;
}

}  // namespace

void PostedOperations::Add(const std::string& what, Result<transfer::Operation> operation) {
  transfer::Operation posted = Must(std::move(operation));
  const int completion = Must(posted.CompletionFd());
  posted_.push_back({what, std::move(posted), completion});
}

void PostedOperations::ExpectAllEnd(Code code, const Stopwatch& since, milliseconds bound) {
  for (Posted& posted : posted_) {
    const Status status = posted.operation.Wait(TestDeadline());
    ExpectWithin(since.elapsed(), bound, fmt::format("the end of the {}", posted.what));
    ASSERT_TRUE(posted.operation.Poll()) << posted.what << " never ended";
    if (status) {
      ADD_FAILURE() << posted.what << " ended well";
    } else {
      EXPECT_EQ(status.error().code(), code) << posted.what << ": " << status.error().ToString();
    }
    posted.ends += CountOf(posted.completion);
  }
}

void PostedOperations::ExpectEndedOnce() {
  for (Posted& posted : posted_) {
    posted.ends += CountOf(posted.completion);
    EXPECT_EQ(posted.ends, 1u) << posted.what;
  }
}

}  // namespace ferry::tests
