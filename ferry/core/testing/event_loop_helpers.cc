#include "ferry/core/testing/event_loop_helpers.h"

#include <gtest/gtest.h>

#include <utility>

namespace ferry {

std::unique_ptr<EventLoop> MakeLoop(microseconds linger) {
  auto loop = EventLoop::Create(linger);
  EXPECT_TRUE(loop);
  return *std::move(loop);
}

std::unique_ptr<EventLoop> MakeRunningLoop() {
  auto loop = MakeLoop();
  loop->StartWorker("test-loop");
  return loop;
}

bool Drive(EventLoop& loop, FunctionRef<bool()> done) {
  return loop.DriveUntil(done, Deadline::After(kPatience), kNoSpin);
}

void Settle(EventLoop& loop, int turns) {
  while (turns-- > 0) loop.DriveOnce();
}

}  // namespace ferry
