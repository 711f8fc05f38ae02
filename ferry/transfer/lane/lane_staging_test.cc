// Tests a lane's copies into and out of the memory of a simulated GPU.
#include "ferry/transfer/lane/lane_staging.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "ferry/core/testing/random_bytes.h"
#include "ferry/cuda/testing/device_target.h"
#include "ferry/transfer/testing/device_mirror.h"
#include "ferry/transfer/testing/lane_bed.h"

namespace ferry::transfer {
namespace {

constexpr std::size_t kStagedBytes = 4096;

class LaneStagingTest : public ::testing::Test {
 protected:
  // An outgoing frame whose payload is the GPU memory.
  StagedFrame Gathered(OperationRef operation = nullptr) {
    StagedFrame staged;
    staged.frame = pool_.New(wire::Type::kWrite, 1, /*checked=*/false);
    staged.frame->payload.push_back({memory_.span().data(), kStagedBytes});
    staged.frame->payload_bytes = kStagedBytes;
    staged.stager = stager_.get();
    staged.record.bytes = kStagedBytes;
    staged.record.operation = std::move(operation);
    return staged;
  }
  bool Place() {
    pieces_.assign(1, {memory_.span().data(), kStagedBytes});
    return inbox_.PlaceInSlot(stager_.get(), kStagedBytes, &pieces_);
  }
  // Runs what was posted until the condition holds.
  template <class Condition>
  void DriveUntil(const Condition& condition) {
    ASSERT_TRUE(bed_.loop->DriveUntil(condition, Deadline::After(std::chrono::seconds(60)),
                                      microseconds(0)));
  }

  LaneBed bed_;  // before the stager, whose thread may still post to the loop
  std::unique_ptr<cuda::DeviceTarget> target_ = cuda::MakeSimulatedTarget({});
  std::unique_ptr<Stager> stager_ =
      Must(Stager::Create(&target_->api(), 0, {.slot_bytes = kStagedBytes, .slots = 2}));
  MirroredMemory memory_{&target_->api(), 0, kStagedBytes, 5};
  LaneMemory lane_memory_{&bed_.memory, 1};
  FramePool pool_{&lane_memory_};
  LaneStaging staging_{&bed_.owner,
                       bed_.loop.get(),
                       {[this] { ++ended_; },
                        [this] {
                          ++slots_;
                          return waits_;
                        }}};
  StagingOutbox& outbox_ = staging_.outbox();
  StagingInbox& inbox_ = staging_.inbox();
  std::vector<iovec> pieces_;
  int ended_ = 0;
  int slots_ = 0;
  bool waits_ = true;
};

TEST_F(LaneStagingTest, FramesLeaveInOrderWithTheBytesOfTheGpu) {
  outbox_.Add(Gathered());
  outbox_.Add({.frame = pool_.New(wire::Type::kReadRefused, 2, false)});
  EXPECT_EQ(outbox_.bytes(), kStagedBytes);
  staging_.AwaitCopies();
  auto first = outbox_.TakeReady();
  ASSERT_TRUE(first);
  const iovec& slot = first->frame->payload.at(0);
  EXPECT_EQ(std::memcmp(slot.iov_base, RandomBytes(kStagedBytes, 5).data(), kStagedBytes), 0);
  EXPECT_EQ(OperationIn(*outbox_.TakeReady()->frame), 2u);
  EXPECT_FALSE(outbox_.TakeReady());
  EXPECT_EQ(outbox_.bytes(), 0u);
  outbox_.ReleaseSlot(&first->copy);
}

TEST_F(LaneStagingTest, ReportsEndsOfCopiesOnTheLoop) {
  outbox_.Add(Gathered());
  DriveUntil([&] { return ended_ > 0; });
  auto staged = outbox_.TakeReady();
  ASSERT_TRUE(staged);
  outbox_.ReleaseSlot(&staged->copy);
}

TEST_F(LaneStagingTest, PullsNoFurtherSliceWhileOneWaitsForASlot) {
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(outbox_.MayStage() || i > 0);
    outbox_.Add(Gathered());
  }
  outbox_.Add(Gathered());
  EXPECT_FALSE(outbox_.MayStage());
  staging_.AwaitCopies();
  auto first = outbox_.TakeReady();
  auto second = outbox_.TakeReady();
  ASSERT_TRUE(first && second);
  EXPECT_FALSE(outbox_.TakeReady());  // it has no slot
  outbox_.ReleaseSlot(&first->copy);
  outbox_.Fill();
  staging_.AwaitCopies();
  auto third = outbox_.TakeReady();
  ASSERT_TRUE(third);
  outbox_.ReleaseSlot(&second->copy);
  outbox_.ReleaseSlot(&third->copy);
}

TEST_F(LaneStagingTest, GivesUpFramesOfStoppedOperationsBeforeTheirCopies) {
  const auto operation = std::make_shared<OperationState>();
  operation->ledger.BeginPulled();
  outbox_.Stop();  // no copy begins
  outbox_.Add(Gathered(operation));
  outbox_.Add(Gathered());
  EXPECT_TRUE(outbox_.TakeStopped().empty());
  ASSERT_FALSE(operation->ledger.Stop(Error(Code::kCancelled, "")));
  const auto stopped = outbox_.TakeStopped();
  ASSERT_EQ(stopped.size(), 1u);
  EXPECT_EQ(stopped[0].record.operation, operation);
  EXPECT_EQ(outbox_.size(), 1u);
  EXPECT_EQ(outbox_.bytes(), kStagedBytes);
  EXPECT_EQ(outbox_.TakeAll().size(), 1u);
  EXPECT_EQ(outbox_.bytes(), 0u);
}

TEST_F(LaneStagingTest, FindsAnswersThatWaitToReadARegion) {
  const auto region = Must(bed_.regions.Add(memory_.span(), Rights::kRead));
  outbox_.Stop();
  StagedFrame answer = Gathered();
  answer.pin = RegionPin(region);
  outbox_.Add(std::move(answer));
  outbox_.Add(Gathered());
  EXPECT_TRUE(outbox_.HoldsRegion(region.get()));
  const auto waiting = outbox_.WaitingFor(region.get());
  ASSERT_EQ(waiting.size(), 1u);
  *waiting[0] = StagedFrame{.frame = pool_.New(wire::Type::kReadRefused, 2, false)};
  EXPECT_FALSE(outbox_.HoldsRegion(region.get()));
  EXPECT_EQ(region->gate.inside(), 0u);
  (void)outbox_.TakeAll();
}

TEST_F(LaneStagingTest, FramesCountAsProcessedInOrderOnceTheyAreInPlace) {
  const auto bytes = RandomBytes(kStagedBytes, 9);
  ASSERT_TRUE(Place());
  EXPECT_TRUE(inbox_.placed());
  std::copy(bytes.begin(), bytes.end(), static_cast<std::byte*>(pieces_[0].iov_base));
  inbox_.Land({.bytes = kStagedBytes, .operation = 1}, {});
  EXPECT_FALSE(inbox_.placed());
  inbox_.AddPlain(3);
  EXPECT_EQ(inbox_.size(), 2u);
  staging_.AwaitCopies();
  const auto first = inbox_.TakeLanded();
  ASSERT_TRUE(first);
  EXPECT_TRUE(first->copy->outcome);
  first->copy->Release();
  EXPECT_TRUE(SameBytes(memory_.Copy(), bytes));
  EXPECT_EQ(inbox_.TakeLanded()->bytes, 3u);
  EXPECT_FALSE(inbox_.TakeLanded());
}

TEST_F(LaneStagingTest, AFrameWaitsForASlotAndResumesWithIt) {
  StageSlot taken[2];
  for (StageSlot& slot : taken) {
    slot = *stager_->Take(StageWay::kFromNetwork, [](const StageSlot&) {});
  }
  EXPECT_FALSE(Place());
  EXPECT_FALSE(Place());  // asks once
  taken[0].Release();
  DriveUntil([&] { return slots_ > 0; });
  EXPECT_EQ(slots_, 1);
  EXPECT_TRUE(Place());
  inbox_.Drop();
}

TEST_F(LaneStagingTest, ASlotThatNobodyWaitsForAnyMoreGoesToOthers) {
  StageSlot taken[2];
  for (StageSlot& slot : taken) {
    slot = *stager_->Take(StageWay::kFromNetwork, [](const StageSlot&) {});
  }
  EXPECT_FALSE(Place());
  waits_ = false;
  taken[0].Release();
  DriveUntil([&] { return slots_ > 0; });
  EXPECT_TRUE(stager_->Take(StageWay::kFromNetwork, [](const StageSlot&) {}));
}

}  // namespace
}  // namespace ferry::transfer
