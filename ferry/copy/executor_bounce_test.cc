// Tests of which blocks the bounce executor stages.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ferry/copy/device_executor.h"
#include "ferry/copy/testing/copy_bed.h"
#include "ferry/core/units.h"
#include "ferry/cuda/testing/device_target.h"

// Which parts of lists use a slot; device_executor_test.cc checks the bytes.
namespace ferry {
namespace {

using cuda::CopyKind;

class BounceExecutorTest : public ::testing::TestWithParam<CopyKind> {
 protected:
  static constexpr std::uint64_t kBlock = 1000;
  static constexpr std::uint64_t kSpace = 4 * kMiB;

  void SetUp() override {
    target_ = cuda::kSimulatedCases[0].make();
    bed_.emplace(&target_->api());
    src_ = bed_->MakeSource(kSpace, kind());
    dst_ = bed_->MakeDestination(kSpace, kind());
    BounceExecutorOptions options;
    options.slot_bytes = 100 * kBlock;
    options.least_run = 20 * kBlock;
    options.engine_block = 50 * kBlock;
    executor_ = Must(MakeBounceExecutor(&target_->api(), 0, options));
  }

  CopyKind kind() const { return GetParam(); }
  Block Oriented(std::uint64_t host, std::uint64_t device, std::uint64_t len) const {
    return kind() == CopyKind::kDeviceToHost ? Block{host, device, len} : Block{device, host, len};
  }

  // Copies and kernels that one call queues.
  std::pair<std::uint64_t, std::uint64_t> Cost(const BlockList& list) {
    const auto before = target_->simulated()->counters();
    const PlacedList placed{list.blocks(), dst_.place, src_.place};
    Must(executor_->Enqueue(bed_->stream(), kind(), {&placed, 1}));
    bed_->Finish();
    const auto after = target_->simulated()->counters();
    EXPECT_EQ(after.device_allocations, before.device_allocations);
    EXPECT_EQ(after.events, before.events);
    return {after.copy_items - before.copy_items, after.launches - before.launches};
  }

  std::unique_ptr<cuda::DeviceTarget> target_;
  std::optional<CopyBed> bed_;
  CopyBed::Memory src_;
  CopyBed::Memory dst_;
  std::unique_ptr<DeviceExecutor> executor_;
};

using Pair = std::pair<std::uint64_t, std::uint64_t>;

TEST_P(BounceExecutorTest, ARunOnTheHostIsOneCopyForEachSlotful) {
  BlockList list;
  for (std::uint64_t i = 0; i < 350; ++i) list.Add(Oriented(i * kBlock, 2 * i * kBlock, kBlock));
  EXPECT_EQ(Cost(list), Pair(4, 4));
}

TEST_P(BounceExecutorTest, AShortRestGoesByTheKernel) {
  BlockList list;
  for (std::uint64_t i = 0; i < 210; ++i) list.Add(Oriented(i * kBlock, 2 * i * kBlock, kBlock));
  EXPECT_EQ(Cost(list), Pair(2, 3));
}

TEST_P(BounceExecutorTest, WhatIsScatteredOnTheHostGoesByOneKernel) {
  BlockList list;
  for (std::uint64_t i = 0; i < 350; ++i) list.Add(Oriented(2 * i * kBlock, i * kBlock, kBlock));
  EXPECT_EQ(Cost(list), Pair(0, 1));
}

TEST_P(BounceExecutorTest, WhatIsLargeOnBothSidesGoesByTheEngineAlone) {
  BlockList list;
  for (std::uint64_t i = 0; i < 120; ++i) list.Add(Oriented(i * kBlock, i * kBlock, kBlock));
  list.Add(Oriented(500 * kBlock, 300 * kBlock, 60 * kBlock));
  EXPECT_EQ(Cost(list), Pair(2, 0));
}

TEST_P(BounceExecutorTest, ALargeBlockEndsARun) {
  BlockList list;
  for (std::uint64_t i = 0; i < 30; ++i) list.Add(Oriented(i * kBlock, 2 * i * kBlock, kBlock));
  list.Add(Oriented(30 * kBlock, 100 * kBlock, 60 * kBlock));
  for (std::uint64_t i = 90; i < 95; ++i) list.Add(Oriented(i * kBlock, 3 * i * kBlock, kBlock));
  EXPECT_EQ(Cost(list), Pair(2, 2));
}

TEST_P(BounceExecutorTest, OptionsOfNothingAreRefused) {
  for (int which = 0; which < 3; ++which) {
    BounceExecutorOptions options;
    if (which == 0) options.slot_bytes = 0;
    if (which == 1) options.slots = 0;
    if (which == 2) options.groups = 0;
    const auto executor = MakeBounceExecutor(&target_->api(), 0, options);
    ASSERT_FALSE(executor);
    EXPECT_EQ(executor.error().code(), Code::kInvalidArgument);
  }
}

INSTANTIATE_TEST_SUITE_P(Simulated, BounceExecutorTest,
                         ::testing::Values(CopyKind::kHostToDevice, CopyKind::kDeviceToHost),
                         [](const auto& test) {
                           return std::string(cuda::CopyKindName(test.param));
                         });

}  // namespace
}  // namespace ferry
