// Tests how often a process returns freed memory to the system.
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>

#include "ferry/transfer/testing/linked_endpoints.h"

namespace {

std::mutex trim_mutex;
std::condition_variable trimmed;
int trims = 0;  // under the mutex

}  // namespace

// Takes the place of glibc's in this program, whose heaps stay as they are.
// NOLINTNEXTLINE(readability-identifier-naming): glibc's name
extern "C" __attribute__((visibility("default"))) int malloc_trim(std::size_t /*pad*/) noexcept {
  const std::lock_guard lock(trim_mutex);
  ++trims;
  trimmed.notify_all();
  return 0;
}

namespace ferry::transfer {
namespace {

// Regression: each endpoint of a process did it by its own clock.
TEST(MemoryTrim, OfAllEndpointsOfAProcessHappensOnceASecond) {
  Link link = MakeLink();
  const auto begun = Clock::now();
  std::unique_lock lock(trim_mutex);
  const int before = trims;
  link.near.connection->Close();
  link.far.connection->Close();
  // The first follows the end of both connections by a second.
  ASSERT_TRUE(trimmed.wait_until(lock, Soon().when(), [&] { return trims >= before + 2; }));
  EXPECT_GE(Clock::now() - begun, std::chrono::seconds(2));
}

}  // namespace
}  // namespace ferry::transfer
