// Tests which slices a lane takes.
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "ferry/transfer/lane/slice_sender.h"
#include "ferry/transfer/testing/lane_bed.h"

namespace ferry::transfer {
namespace {

using Queue = SlicePuller::Queue;

LaneLoad NoLoad() {
  LaneLoad load;
  load.drainable = ~std::uint64_t{0};
  load.may_ask = load.may_stage = true;
  return load;
}

// As if its memory were a GPU's.
void MarkStaged(OperationState* operation) {
  Plan staged = *operation->plan;
  staged.staged = true;
  operation->plan = std::make_shared<const Plan>(std::move(staged));
}

TEST(SlicePuller, TakesOneSliceOfEachOperationInTurn) {
  const LaneBed bed;
  SlicePuller puller(bed.site);
  const SlicedMemory first(2);
  const SlicedMemory second(1);
  puller.Add(first.operation);
  puller.Add(second.operation);
  puller.Add(first.operation);  // queued already
  EXPECT_EQ(puller.Pull(Queue::kWrites, NoLoad())->operation, first.operation);
  EXPECT_EQ(puller.Pull(Queue::kWrites, NoLoad())->operation, second.operation);
  const auto last = puller.Pull(Queue::kWrites, NoLoad());
  ASSERT_TRUE(last);
  EXPECT_EQ(last->operation, first.operation);
  EXPECT_EQ(last->slice, 1u);
  EXPECT_FALSE(puller.Pull(Queue::kWrites, NoLoad()));
  EXPECT_TRUE(puller.empty());
}

TEST(SlicePuller, SkipsOperationsThatWereStopped) {
  const LaneBed bed;
  SlicePuller puller(bed.site);
  const SlicedMemory stopped(2);
  const SlicedMemory goes_on(1);
  puller.Add(stopped.operation);
  puller.Add(goes_on.operation);
  ASSERT_TRUE(stopped.operation->ledger.Stop(Error(Code::kCancelled, "")));
  EXPECT_EQ(puller.Pull(Queue::kWrites, NoLoad())->operation, goes_on.operation);
  EXPECT_TRUE(puller.empty());
}

TEST(SlicePuller, TakesNoMoreThanTheSocketAndTheWindowHaveRoomFor) {
  const LaneBed bed;
  SlicePuller puller(bed.site);
  const SlicedMemory memory(100);
  puller.Add(memory.operation);
  LaneLoad load = NoLoad();
  load.unsent = 2000;  // two slices
  EXPECT_FALSE(puller.Pull(Queue::kWrites, load));
  load = NoLoad();
  load.unacknowledged = bed.context.window_bytes;
  EXPECT_FALSE(puller.Pull(Queue::kWrites, load));
  load.unacknowledged = 500;
  load.drainable = 500;
  EXPECT_FALSE(puller.Pull(Queue::kWrites, load));
  load.drainable = 501;
  EXPECT_TRUE(puller.Pull(Queue::kWrites, load));
}

TEST(SlicePuller, TakesLessNearTheEndOnASlowLane) {
  LaneBed bed;
  bed.context.bulk_lanes = 2;
  SlicePuller puller(bed.site);
  const SlicedMemory memory(4);
  puller.Add(memory.operation);
  LaneLoad load = NoLoad();
  load.unacknowledged = 1000;
  bed.SetShare(0.05);
  EXPECT_FALSE(puller.Pull(Queue::kWrites, load));
  bed.SetShare(0.95);
  EXPECT_TRUE(puller.Pull(Queue::kWrites, load));
}

TEST(SlicePuller, TakesMoreThanItsShareOfGpuMemoryOnlyWhenLittleIsInFlight) {
  LaneBed bed;
  bed.context.bulk_lanes = 4;
  bed.SetShare(0.25);
  SlicePuller puller(bed.site);
  const SlicedMemory memory(12, Direction::kRead);
  MarkStaged(memory.operation.get());
  puller.Add(memory.operation);
  LaneLoad load = NoLoad();
  for (std::uint64_t taken = 0; taken < 3; ++taken) {
    load.reading = taken * 1000;
    EXPECT_TRUE(puller.Pull(Queue::kReads, load));
  }
  load.reading = 3000;
  EXPECT_FALSE(puller.Pull(Queue::kReads, load));
  load.reading = 2000;
  EXPECT_FALSE(puller.Pull(Queue::kReads, load));
  load.reading = 1000;
  EXPECT_TRUE(puller.Pull(Queue::kReads, load));
}

TEST(SlicePuller, ManySmallOperationsOfGpuMemoryAreInFlightAtOnce) {
  LaneBed bed;
  bed.context.bulk_lanes = 4;
  bed.SetShare(0.25);
  SlicePuller puller(bed.site);
  std::vector<SlicedMemory> memories;
  LaneLoad load = NoLoad();
  for (std::uint64_t i = 0; i < 4; ++i) {
    const SlicedMemory& memory = memories.emplace_back(1, Direction::kRead);
    MarkStaged(memory.operation.get());
    puller.Add(memory.operation);
    load.reading = i * 1000;
    EXPECT_TRUE(puller.Pull(Queue::kReads, load));
  }
}

TEST(SlicePuller, AnOperationThatOtherLanesHaveTakenHoldsUpNone) {
  LaneBed bed;
  bed.context.bulk_lanes = 4;
  bed.SetShare(0.25);
  SlicePuller puller(bed.site);
  const SlicedMemory taken(2, Direction::kRead);
  const SlicedMemory next(40, Direction::kRead);
  for (const SlicedMemory* memory : {&taken, &next}) {
    MarkStaged(memory->operation.get());
    puller.Add(memory->operation);
  }
  EXPECT_EQ(puller.Pull(Queue::kReads, NoLoad())->operation, taken.operation);
  EXPECT_EQ(puller.Pull(Queue::kReads, NoLoad())->operation, next.operation);
  ASSERT_TRUE(taken.operation->ledger.Pull());  // by another lane
  LaneLoad load = NoLoad();
  load.reading = 3000;
  const auto pulled = puller.Pull(Queue::kReads, load);
  ASSERT_TRUE(pulled);
  EXPECT_EQ(pulled->operation, next.operation);
}

TEST(SlicePuller, RequestsReadsOnlyWhileThePeerCanHoldTheAnswers) {
  const LaneBed bed;
  SlicePuller puller(bed.site);
  const SlicedMemory memory(4, Direction::kRead);
  puller.Add(memory.operation);
  EXPECT_FALSE(puller.Pull(Queue::kWrites, NoLoad()));
  LaneLoad load = NoLoad();
  load.may_ask = false;
  EXPECT_FALSE(puller.Pull(Queue::kReads, load));
  load.may_ask = true;
  load.reading = 8000;
  EXPECT_FALSE(puller.Pull(Queue::kReads, load));
  EXPECT_TRUE(puller.Pull(Queue::kReads, NoLoad()));
}

TEST(SlicePuller, TakesNothingOnceStopped) {
  const LaneBed bed;
  SlicePuller puller(bed.site);
  const SlicedMemory memory(4);
  puller.Add(memory.operation);
  puller.Stop();
  puller.Add(memory.operation);
  EXPECT_TRUE(puller.empty());
  EXPECT_FALSE(puller.Pull(Queue::kWrites, NoLoad()));
}

}  // namespace
}  // namespace ferry::transfer
