// Loops and waits for tests.
#pragma once
#include <chrono>
#include <memory>

#include "ferry/core/function_ref.h"
#include "ferry/core/loop/event_loop.h"

// For tests of loops and of objects that live on them.
namespace ferry {

inline constexpr std::chrono::seconds kTimeout{30};
inline constexpr microseconds kNoSpin{0};

std::unique_ptr<EventLoop> MakeLoop(microseconds linger = milliseconds(1));
// With a worker.
std::unique_ptr<EventLoop> MakeRunningLoop();

// Returns whether `done` became true before the timeout.
bool Drive(EventLoop& loop, FunctionRef<bool()> done);
// Drives a loop without a worker until the queued tasks, and the tasks that they queue, have run.
void Settle(EventLoop& loop, int turns = 8);

}  // namespace ferry
