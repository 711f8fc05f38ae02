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
  return loop.DriveUntil(done, Deadline::After(kTimeout), kNoSpin);
}

void Settle(EventLoop& loop, int turns) {
  while (turns-- > 0) loop.DriveOnce();
}

}  // namespace ferry
