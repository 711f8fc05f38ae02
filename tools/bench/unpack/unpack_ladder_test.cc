// Tests of the ladder of unpack calls: what each rung asks of the device, and its bytes.

#include "tools/bench/unpack/unpack_ladder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>

#include "ferry/cuda/simulated/devices.h"

namespace ferry::tools {
namespace {

constexpr std::uint64_t kChunkBytes = 16384;
constexpr std::uint64_t kFragmentBytes = 1024;
constexpr std::uint64_t kChunks = 5;

// What one climb asks of the device.
struct Asked {
  std::uint64_t streams = 0;
  std::uint64_t allocations = 0;
  std::uint64_t launches = 0;
  std::uint64_t engine_copies = 0;
  friend bool operator==(const Asked&, const Asked&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Asked& asked) {
    return out << asked.streams << " streams, " << asked.allocations << " allocations, "
               << asked.launches << " launches, " << asked.engine_copies << " engine copies";
  }
};

class UnpackLadderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto devices = cuda::SimulatedDevices::Create({});
    ASSERT_TRUE(devices);
    devices_ = std::move(*devices);
    job_.bytes = kChunks * kChunkBytes;
    auto bed = UnpackBed::Create(devices_.get(), job_, kChunkBytes, kFragmentBytes);
    ASSERT_TRUE(bed) << bed.error().ToString();
    bed_ = std::move(*bed);
    auto ladder = UnpackLadder::Create(devices_.get(), 0, bed_.get());
    ASSERT_TRUE(ladder) << ladder.error().ToString();
    ladder_ = std::move(*ladder);
  }

  Asked AskedBy(Rung rung) {
    const cuda::SimulationCounters before = devices_->counters();
    const Status climbed = ladder_->Climb(rung, Deadline::After(std::chrono::seconds(60)));
    EXPECT_TRUE(climbed) << climbed.error().ToString();
    const cuda::SimulationCounters after = devices_->counters();
    return {after.streams - before.streams,
            after.device_allocations - before.device_allocations + after.pinned_allocations -
                before.pinned_allocations,
            after.launches - before.launches, after.copy_items - before.copy_items};
  }

  // How many chunks a rung queues on a device that does nothing, until its wait has timed out.
  std::uint64_t QueuedBeforeFirstWait(Rung rung) {
    devices_->Pause();
    const std::uint64_t before = devices_->counters().launches;
    const Status climbed = ladder_->Climb(rung, Deadline::After(std::chrono::seconds(0)));
    const std::uint64_t after = devices_->counters().launches;
    devices_->Resume();
    EXPECT_TRUE(!climbed && climbed.error().code() == Code::kTimedOut);
    return after - before;
  }

  BenchJob job_;
  std::unique_ptr<cuda::SimulatedDevices> devices_;
  std::unique_ptr<UnpackBed> bed_;
  std::unique_ptr<UnpackLadder> ladder_;
};

TEST_F(UnpackLadderTest, EachRungAsksLessOfTheDevice) {
  // A launcher copies its descriptors by the engine.
  EXPECT_EQ(AskedBy(Rung::kAllAnew), (Asked{kChunks, kChunks, kChunks, kChunks}));
  EXPECT_EQ(AskedBy(Rung::kKeptLauncher), (Asked{0, kChunks, kChunks, kChunks}));
  EXPECT_EQ(AskedBy(Rung::kAsynchronous), (Asked{0, kChunks, kChunks, kChunks}));
  EXPECT_EQ(AskedBy(Rung::kPreallocated), (Asked{0, 0, kChunks, 0}));
  EXPECT_EQ(AskedBy(Rung::kOneLaunch), (Asked{0, 0, 1, 0}));
  std::uint64_t blocks = 0;  // fragments, less those that follow each other in the pool, too
  for (const PooledMessage& message : bed_->messages()) blocks += message.blocks.size();
  EXPECT_GT(blocks, 10 * kChunks);
  EXPECT_EQ(AskedBy(Rung::kCopyEngine), (Asked{0, 0, 0, blocks}));
}

TEST_F(UnpackLadderTest, TheFirstRungWaitsForEachChunk) {
  EXPECT_EQ(QueuedBeforeFirstWait(Rung::kAllAnew), 1U);
}

TEST_F(UnpackLadderTest, TheSecondRungWaitsForEachChunk) {
  EXPECT_EQ(QueuedBeforeFirstWait(Rung::kKeptLauncher), 1U);
}

TEST_F(UnpackLadderTest, TheHigherRungsWaitOnceForAllChunks) {
  EXPECT_EQ(QueuedBeforeFirstWait(Rung::kAsynchronous), kChunks);
  EXPECT_EQ(QueuedBeforeFirstWait(Rung::kPreallocated), kChunks);
}

TEST_F(UnpackLadderTest, EveryRungUnpacksEveryByte) {
  for (int rung = 0; rung < kRungs; ++rung) {
    SCOPED_TRACE(rung);
    ASSERT_TRUE(bed_->Spoil());
    const auto before = bed_->IsUnpacked();
    ASSERT_TRUE(before);
    EXPECT_FALSE(*before) << "old contents are not taken for unpacked bytes";
    (void)AskedBy(static_cast<Rung>(rung));
    const auto after = bed_->IsUnpacked();
    ASSERT_TRUE(after);
    EXPECT_TRUE(*after);
  }
}

TEST_F(UnpackLadderTest, MoreChunksThanABatchMayBeInFlightAreRefused) {
  job_.bytes = (tcpx::kMaxUnpackBatches + 1) * kChunkBytes;
  const auto bed = UnpackBed::Create(devices_.get(), job_, kChunkBytes, kFragmentBytes);
  ASSERT_TRUE(bed);
  const auto ladder = UnpackLadder::Create(devices_.get(), 0, bed->get());
  ASSERT_FALSE(ladder);
  EXPECT_THAT(ladder.error().message(), ::testing::HasSubstr("makes 49 chunks"));
}

}  // namespace
}  // namespace ferry::tools
