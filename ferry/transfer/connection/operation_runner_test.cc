// Tests the life of operations over lanes that have no sockets.
#include "ferry/transfer/connection/operation_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "ferry/transfer/testing/lone_lanes.h"

namespace ferry::transfer {
namespace {

using ::testing::HasSubstr;

class OperationRunnerTest : public ::testing::Test {
 protected:
  OperationRef New(OperationKind kind) {
    auto operation = std::make_shared<OperationState>();
    operation->kind = kind;
    operation->id = runner().NewId();
    return operation;
  }
  OperationRef NewWrite(std::size_t slices) {
    auto plan = std::make_shared<Plan>();
    plan->direction = Direction::kWrite;
    plan->slice_count = slices;
    plan->bytes = slices << 20;
    plan->slice_bytes = 1 << 20;
    OperationRef write = New(OperationKind::kWrite);
    write->plan = std::move(plan);
    return write;
  }
  OperationRef Submit(OperationRef operation) {
    runner().Submit(operation);
    lanes_.Drive();
    return operation;
  }
  // What a lane does with a slice.
  static void Pull(const OperationRef& operation) {
    ASSERT_TRUE(operation->ledger.Pull().has_value());
  }
  void Resolve(const OperationRef& operation) {
    if (operation->ledger.Resolve()) runner().PostRoundDone(operation);
    lanes_.Drive();
  }
  void Lose() { (void)lanes_.common().state.Lose(Error(Code::kPeerLost, "lost")); }
  OperationRunner& runner() { return lanes_.operations(); }
  static Code CodeOf(const OperationRef& operation) {
    return operation->outcome.status ? Code::kInternal : operation->outcome.status.error().code();
  }

  LoneLanes lanes_{Config{}};
};

TEST_F(OperationRunnerTest, AWriteEndsWithItsLastSlice) {
  const auto write = Submit(NewWrite(2));
  EXPECT_EQ(runner().in_flight(), 1u);
  EXPECT_EQ(runner().Find(write->id), write);
  Pull(write);
  Pull(write);
  Resolve(write);
  EXPECT_FALSE(write->done);
  Resolve(write);
  ASSERT_TRUE(write->done);
  EXPECT_TRUE(write->outcome.status);
  EXPECT_EQ(write->outcome.bytes, 2u << 20);
  EXPECT_EQ(runner().in_flight(), 0u);
  EXPECT_EQ(runner().Find(write->id), nullptr);
}

TEST_F(OperationRunnerTest, ANotificationFollowsTheData) {
  auto write = NewWrite(1);
  write->notification.resize(10);
  Submit(write);
  Pull(write);
  Resolve(write);
  EXPECT_FALSE(write->done);
  EXPECT_EQ(write->phase(), OperationState::Phase::kNotify);
  Resolve(write);
  EXPECT_TRUE(write->done && write->outcome.status);
}

TEST_F(OperationRunnerTest, ACancelEndsWhatNoLaneHoldsAtOnce) {
  const auto write = Submit(NewWrite(2));
  runner().Cancel(write);
  lanes_.Drive();
  ASSERT_TRUE(write->done);
  EXPECT_EQ(CodeOf(write), Code::kCancelled);
  EXPECT_EQ(write->outcome.bytes, 0u);
}

TEST_F(OperationRunnerTest, ACancelWaitsForSlicesInFlight) {
  const auto write = Submit(NewWrite(2));
  Pull(write);
  runner().Cancel(write);
  lanes_.Drive();
  EXPECT_FALSE(write->done);
  EXPECT_FALSE(write->ledger.Pull().has_value()) << "the rest is not sent";
  Resolve(write);
  ASSERT_TRUE(write->done);
  EXPECT_EQ(CodeOf(write), Code::kCancelled);
}

TEST_F(OperationRunnerTest, ACancelOfAnEndedOperationChangesNothing) {
  const auto write = Submit(NewWrite(1));
  Pull(write);
  Resolve(write);
  runner().Cancel(write);
  lanes_.Drive();
  EXPECT_TRUE(write->outcome.status);
}

TEST_F(OperationRunnerTest, ADeadlineEndsIt) {
  auto write = NewWrite(1);
  write->deadline = Deadline::After(milliseconds(1));
  runner().Submit(write);
  EXPECT_TRUE(lanes_.DriveUntil([&] { return write->done.load(); }));
  EXPECT_EQ(CodeOf(write), Code::kTimedOut);
  EXPECT_THAT(write->outcome.status.error().message(),
              HasSubstr("did not end before its deadline"));
}

TEST_F(OperationRunnerTest, ItExpiresAsAtItsDeadline) {
  const auto idle = Submit(NewWrite(1));
  const auto held = Submit(NewWrite(1));
  const auto notify = Submit(New(OperationKind::kNotify));
  Pull(held);
  for (const auto& operation : {idle, held, held, notify}) runner().Expire(operation);
  lanes_.Drive();
  EXPECT_EQ(CodeOf(idle), Code::kTimedOut);
  EXPECT_FALSE(held->done);
  EXPECT_FALSE(notify->done) << "the lane still has it";
  Resolve(held);
  Resolve(notify);
  EXPECT_EQ(CodeOf(held), Code::kTimedOut);
  EXPECT_EQ(CodeOf(notify), Code::kTimedOut);
  EXPECT_THAT(held->outcome.status.error().message(), HasSubstr("did not end before its deadline"));
  runner().Expire(held);
  lanes_.Drive();
  EXPECT_EQ(runner().in_flight(), 0u);
}

TEST_F(OperationRunnerTest, ItBeginsWhenItsStreamHasComeSoFar) {
  auto write = NewWrite(1);
  write->waits_for_stream = true;
  Submit(write);
  EXPECT_EQ(write->phase(), OperationState::Phase::kNew);
  runner().OnStreamReached(write, Ok());
  lanes_.Drive();
  EXPECT_EQ(write->phase(), OperationState::Phase::kSlices);
}

TEST_F(OperationRunnerTest, AFailedStreamEndsIt) {
  auto write = NewWrite(1);
  write->waits_for_stream = true;
  Submit(write);
  runner().OnStreamReached(write, Error(Code::kInternal, "the device is lost"));
  lanes_.Drive();
  ASSERT_TRUE(write->done);
  EXPECT_THAT(write->outcome.status.error().message(), HasSubstr("the device is lost"));
}

TEST_F(OperationRunnerTest, NothingBeginsOnALostConnection) {
  Lose();
  const auto write = Submit(NewWrite(1));
  ASSERT_TRUE(write->done);
  EXPECT_EQ(CodeOf(write), Code::kPeerLost);
  EXPECT_EQ(runner().in_flight(), 0u);
}

TEST_F(OperationRunnerTest, AStopLeavesWhatLanesHoldToTheClose) {
  const auto idle = Submit(NewWrite(1));
  const auto held = Submit(NewWrite(1));
  const auto receive = Submit(New(OperationKind::kRecv));
  Pull(held);
  Lose();
  runner().Stop(Error(Code::kPeerLost, "lost"));
  EXPECT_TRUE(idle->done && receive->done);
  EXPECT_FALSE(held->done);
  runner().Close(Error(Code::kPeerLost, "lost"));
  EXPECT_EQ(CodeOf(held), Code::kPeerLost);
  EXPECT_EQ(runner().in_flight(), 0u);
}

TEST_F(OperationRunnerTest, ALateEndOfARoundChangesNothing) {
  const auto held = Submit(NewWrite(1));
  Pull(held);
  Lose();
  runner().Stop(Error(Code::kPeerLost, "lost"));
  runner().Close(Error(Code::kPeerLost, "lost"));
  Resolve(held);
  EXPECT_EQ(CodeOf(held), Code::kPeerLost);
}

// The loop stops with the endpoint: whoever waits for the operation must not wait for ever.
TEST(OperationRunnerEndTest, AnOperationWhoseBeginNeverRanEnds) {
  OperationRef notify = std::make_shared<OperationState>();
  notify->kind = OperationKind::kNotify;
  notify->id = 2;
  {
    LoneLanes lanes{Config{}};
    auto first = std::make_shared<OperationState>();
    first->kind = OperationKind::kNotify;
    first->id = 1;
    lanes.operations().Submit(first);   // runs at once
    lanes.operations().Submit(notify);  // is posted, because data of ours is in flight
  }
  ASSERT_TRUE(notify->done);
  EXPECT_EQ(notify->outcome.status.error().code(), Code::kCancelled);
}

}  // namespace
}  // namespace ferry::transfer
