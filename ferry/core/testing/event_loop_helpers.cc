// Loops for tests, with and without a worker.
#include "ferry/core/testing/event_loop_helpers.h"

#include <gtest/gtest.h>

#include <utility>

#include "ferry/core/check.h"

namespace ferry {

std::unique_ptr<EventLoop> MakeLoop(microseconds linger) {
  auto loop = EventLoop::Create(linger);
  EXPECT_TRUE(loop);
  return *std::move(loop);
}

std::unique_ptr<EventLoop> MakeRunningLoop() {
  auto loop = MakeLoop();
  FERRY_CHECK(loop->StartWorker("test-loop").has_value());
  return loop;
}

bool Drive(EventLoop& loop, FunctionRef<bool()> done) {
  const Deadline deadline = Deadline::After(kTimeout);
  // A lost wake-up lets a wait sleep to its deadline, and find its condition true only then.
  return loop.DriveUntil(done, deadline, kNoSpin) && !deadline.expired();
}

void Settle(EventLoop& loop, int turns) {
  while (turns-- > 0) loop.DriveOnce();
}

}  // namespace ferry
