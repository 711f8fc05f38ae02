// Tests of closing and draining a gate.
#include "ferry/core/loop/gate.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

namespace ferry {
namespace {

using std::chrono::seconds;

TEST(Gate, AdmitsUntilClosed) {
  Gate gate;
  EXPECT_TRUE(gate.TryEnter());
  gate.Close();
  EXPECT_TRUE(gate.closed());
  EXPECT_FALSE(gate.TryEnter());
  EXPECT_EQ(gate.inside(), 1u);
  gate.Leave();
}

TEST(Gate, ClosingAnEmptyGateDrainsItAtOnce) {
  Gate gate;
  gate.Close();
  EXPECT_TRUE(gate.WaitDrained(Deadline::After(seconds(0))));
  EXPECT_TRUE(gate.WaitDrained(Deadline::Never()));
}

TEST(Gate, ClosingTwiceIsHarmless) {
  Gate gate;
  ASSERT_TRUE(gate.TryEnter());
  gate.Close();
  gate.Close();
  EXPECT_FALSE(gate.WaitDrained(Deadline::After(milliseconds(1))));
  gate.Leave();
  gate.Close();
  EXPECT_TRUE(gate.WaitDrained(Deadline::After(seconds(0))));
}

TEST(Gate, AnEmptyGateThatIsOpenIsNotDrained) {
  Gate gate;
  ASSERT_TRUE(gate.TryEnter());
  gate.Leave();
  EXPECT_FALSE(gate.WaitDrained(Deadline::After(milliseconds(1))));
}

TEST(Gate, WaitingEndsAtTheDeadlineWhileSomeoneIsInside) {
  Gate gate;
  const GateHold hold(gate);
  gate.Close();
  const Deadline deadline = Deadline::After(milliseconds(5));
  EXPECT_FALSE(gate.WaitDrained(deadline));
  EXPECT_TRUE(deadline.expired());
}

TEST(GateHold, LeavesOnDestructionAndAfterMovesOnlyOnce) {
  Gate gate;
  {
    GateHold a(gate);
    ASSERT_TRUE(a);
    GateHold b = std::move(a);
    EXPECT_FALSE(a);  // NOLINT: the moved-from state is what is tested
    GateHold c(gate);
    EXPECT_EQ(gate.inside(), 2u);
    c = std::move(b);
    EXPECT_EQ(gate.inside(), 1u);
  }
  EXPECT_EQ(gate.inside(), 0u);
}

TEST(GateHold, IsFalseAtAClosedGate) {
  Gate gate;
  gate.Close();
  EXPECT_FALSE(GateHold(gate));
}

TEST(GateDeathTest, LeavingWithoutEnteringAborts) {
  Gate gate;
  EXPECT_DEATH(gate.Leave(), "check failed");
}

// Until the gate closes.
void CountEntries(Gate& gate, int& entries) {
  while (true) {
    const GateHold hold(gate);
    if (!hold) return;
    ++entries;
  }
}

TEST(Gate, WhatWasWrittenInsideIsVisibleAfterTheWait) {
  for (int round = 0; round < 20; ++round) {
    Gate gate;
    int a = 0;
    int b = 0;
    const std::jthread first([&] { CountEntries(gate, a); });
    const std::jthread second([&] { CountEntries(gate, b); });
    while (gate.inside() == 0) std::this_thread::yield();
    gate.Close();
    ASSERT_TRUE(gate.WaitDrained(Deadline::After(seconds(30))));
    EXPECT_GT(a + b, 0);
  }
}

TEST(Gate, TheLastToLeaveTouchesNothingAfterTheWaiterIsReleased) {
  for (int round = 0; round < 500; ++round) {
    auto gate = std::make_unique<Gate>();
    ASSERT_TRUE(gate->TryEnter());
    std::jthread leaver([g = gate.get()] { g->Leave(); });
    gate->Close();
    ASSERT_TRUE(gate->WaitDrained(Deadline::After(seconds(30))));
    gate.reset();
  }
}

}  // namespace
}  // namespace ferry
