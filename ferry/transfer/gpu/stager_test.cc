// Tests the stager on simulated devices and on GPUs.
#include "ferry/transfer/gpu/stager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "ferry/core/crc32c.h"
#include "ferry/core/testing/random_bytes.h"
#include "ferry/cuda/address.h"
#include "ferry/cuda/testing/device_target.h"
#include "ferry/transfer/gpu/staged_copy.h"
#include "ferry/transfer/testing/linked_endpoints.h"

namespace ferry::transfer {
namespace {

constexpr std::uint64_t kSlotBytes = 64 * 1024;
constexpr auto kTimeout = std::chrono::seconds(60);

// Records how requests ended, in the order of their ends.
class Endings {
 public:
  Stager::Done Next(int name) {
    return [this, name](const Status& status) {
      const std::lock_guard lock(mutex_);
      all_.emplace_back(name, status ? "ok" : CodeName(status.error().code()));
      changed_.notify_all();
    };
  }
  std::vector<std::pair<int, std::string>> Await(std::size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kTimeout, [&] { return all_.size() >= count; }));
    return all_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::pair<int, std::string>> all_;
};

class StagerTest : public ::testing::TestWithParam<cuda::DeviceCase> {
 protected:
  void SetUp() override {
    target_ = GetParam().make();
    if (const std::string why = target_->Unavailable(); !why.empty()) GTEST_SKIP() << why;
    stager_ = Must(Stager::Create(&target_->api(), 0, {.slot_bytes = kSlotBytes, .slots = 8}));
    memory_ = Must(target_->api().AllocateDevice(0, kBytes));
    stream_ = Must(target_->api().CreateStream(0, cuda::StreamPriority::kNormal));
    mirror_ = Must(target_->api().AllocatePinned(0, kBytes));
  }

  StageSlot Take(StageWay way) {
    auto slot = stager_->Take(way, [](const StageSlot&) {});
    EXPECT_TRUE(slot.has_value());
    return std::move(*slot);
  }
  std::uint64_t At(std::uint64_t offset) const { return cuda::AddressOf(memory_.data()) + offset; }
  // Shuffled blocks of the memory with gaps between them; `side` is dst or src.
  std::vector<Block> Scattered(std::uint64_t Block::*side, std::uint64_t total, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::uint64_t> places(kBytes / 1024);
    std::iota(places.begin(), places.end(), 0);
    std::shuffle(places.begin(), places.end(), random);
    std::vector<Block> blocks;
    while (total > 0) {
      Block block;
      block.len = std::min<std::uint64_t>(total, 1 + random() % 1000);
      block.*side = At(places.back() * 1024);
      places.pop_back();
      total -= block.len;
      blocks.push_back(block);
    }
    return blocks;
  }
  void FillMemory(unsigned seed) {
    FillRandomly(mirror_.bytes(), seed);
    Move(cuda::CopyKind::kHostToDevice, memory_.data(), mirror_.data());
  }
  std::span<const std::byte> Memory() {
    Move(cuda::CopyKind::kDeviceToHost, mirror_.data(), memory_.data());
    return mirror_.bytes();
  }
  void Move(cuda::CopyKind kind, void* dst, const void* src) {
    const cuda::CopyItem item{dst, src, kBytes};
    ASSERT_TRUE(target_->api().Copy(stream_, kind, {&item, 1}));
    ASSERT_TRUE(target_->api().Wait(stream_, Deadline::After(kTimeout)));
  }

  static constexpr std::uint64_t kBytes = 512 * 1024;
  std::unique_ptr<cuda::DeviceTarget> target_;
  cuda::DeviceBuffer memory_;
  cuda::PinnedBuffer mirror_;
  cuda::Stream stream_;
  Endings endings_;
  std::unique_ptr<Stager> stager_;
};

TEST_P(StagerTest, ScatteredBlocksComeTogetherInASlot) {
  FillMemory(1);
  const auto blocks = Scattered(&Block::src, 40'000, 2);
  const StageSlot slot = Take(StageWay::kToNetwork);
  stager_->Gather(slot, blocks, endings_.Next(1));
  EXPECT_THAT(endings_.Await(1), ::testing::ElementsAre(std::pair(1, std::string("ok"))));
  const std::byte* from = slot.memory().data();
  for (const Block& block : blocks) {
    ASSERT_EQ(std::memcmp(from, mirror_.bytes().data() + (block.src - At(0)), block.len), 0);
    from += block.len;
  }
}

TEST_P(StagerTest, ASlotIsScatteredToItsBlocksAndNowhereElse) {
  FillMemory(1);
  const auto before = Memory();
  std::vector<std::byte> expected(before.begin(), before.end());
  const auto blocks = Scattered(&Block::dst, kSlotBytes, 3);
  const StageSlot slot = Take(StageWay::kFromNetwork);
  FillRandomly(slot.memory(), 4);
  const std::byte* from = slot.memory().data();
  for (const Block& block : blocks) {
    std::memcpy(expected.data() + (block.dst - At(0)), from, block.len);
    from += block.len;
  }
  stager_->Scatter(slot, blocks, endings_.Next(1));
  endings_.Await(1);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), Memory().begin()));
}

TEST_P(StagerTest, ChecksumsOfBothWaysAreThoseOfTheBytes) {
  FillMemory(1);
  const StageSlot out = Take(StageWay::kToNetwork);
  const StageSlot in = Take(StageWay::kFromNetwork);
  FillRandomly(in.memory(), 4);
  std::uint32_t left = 0;
  std::uint32_t arrived = 0;
  stager_->Gather(out, Scattered(&Block::src, 40'000, 2), endings_.Next(1), &left);
  endings_.Await(1);
  stager_->Scatter(in, Scattered(&Block::dst, kSlotBytes, 3), endings_.Next(2), &arrived);
  EXPECT_THAT(endings_.Await(2), ::testing::ElementsAre(std::pair(1, std::string("ok")),
                                                        std::pair(2, std::string("ok"))));
  EXPECT_EQ(left, Crc32c(out.memory().first(40'000)));
  EXPECT_EQ(arrived, Crc32c(in.memory()));
}

TEST_P(StagerTest, WhoFindsNoSlotIsGivenOneInTurnWhenOneIsBack) {
  std::vector<StageSlot> taken;
  for (int i = 0; i < 8; ++i) taken.push_back(Take(StageWay::kToNetwork));
  std::vector<std::pair<int, StageSlot>> given;
  for (const int who : {1, 2}) {
    EXPECT_FALSE(stager_->Take(StageWay::kToNetwork, [&given, who](StageSlot slot) {
      given.emplace_back(who, std::move(slot));
    }));
  }
  // The other direction has slots of its own.
  EXPECT_TRUE(Take(StageWay::kFromNetwork));
  taken.pop_back();
  ASSERT_EQ(given.size(), 1U);
  EXPECT_EQ(given[0].first, 1);
  // They belong to the waiting request now.
  EXPECT_FALSE(stager_->TakeSpare(StageWay::kToNetwork));
  given.front().second.Release();
  ASSERT_EQ(given.size(), 2U);
  EXPECT_EQ(given[1].first, 2);
}

TEST_P(StagerTest, SpareSlotsAreThoseBeyondHalfOfThem) {
  std::vector<StageSlot> taken;
  while (auto slot = stager_->TakeSpare(StageWay::kFromNetwork)) taken.push_back(std::move(*slot));
  EXPECT_EQ(taken.size(), 4U);
  EXPECT_TRUE(Take(StageWay::kFromNetwork));
  taken.resize(2);
  EXPECT_TRUE(stager_->TakeSpare(StageWay::kFromNetwork));
}

TEST_P(StagerTest, CopiesOfOneWayEndInTheirOrder) {
  std::vector<StageSlot> slots;
  for (int i = 0; i < 8; ++i) slots.push_back(Take(StageWay::kFromNetwork));
  for (int i = 0; i < 8; ++i) {
    const Block block{.dst = At(0), .src = 0, .len = kSlotBytes};
    std::memset(slots[static_cast<std::size_t>(i)].memory().data(), i, kSlotBytes);
    // All write to one place, so that a wrong order would show. One request per launch, because
    // requests within a launch have no order.
    stager_->Scatter(slots[static_cast<std::size_t>(i)], {&block, 1}, endings_.Next(i));
    endings_.Await(static_cast<std::size_t>(i) + 1);
  }
  EXPECT_EQ(Memory()[100], static_cast<std::byte>(7));
}

class SimulatedStagerTest : public StagerTest {};

TEST_P(SimulatedStagerTest, WhatWaitsLeavesTogether) {
  cuda::SimulatedDevices& devices = *target_->simulated();
  devices.Pause();
  std::vector<StageSlot> slots;
  for (int i = 0; i < 8; ++i) slots.push_back(Take(StageWay::kFromNetwork));
  const Block block{.dst = At(0), .src = 0, .len = 1000};
  // A launch that runs and one behind it, each with one request. A third one waits for more
  // requests.
  for (int i = 0; i < 2; ++i) {
    stager_->Scatter(slots[static_cast<std::size_t>(i)], {&block, 1}, endings_.Next(i));
    const Deadline limit = Deadline::After(kTimeout);
    while (stager_->Counters(StageWay::kFromNetwork).launches <= static_cast<unsigned>(i)) {
      ASSERT_FALSE(limit.expired());
      std::this_thread::yield();
    }
  }
  for (int i = 2; i < 5; ++i) {
    const Block elsewhere{.dst = At(static_cast<std::uint64_t>(i) * 1000), .src = 0, .len = 1000};
    stager_->Scatter(slots[static_cast<std::size_t>(i)], {&elsewhere, 1}, endings_.Next(i));
  }
  devices.Resume();
  endings_.Await(5);
  const StagerCounters counters = stager_->Counters(StageWay::kFromNetwork);
  EXPECT_EQ(counters.launches, 3U);
  EXPECT_EQ(counters.slots, 5U);
  EXPECT_EQ(counters.bytes, 5000U);
}

TEST_P(SimulatedStagerTest, AThirdLaunchIsQueuedOnceItHasEnoughRequests) {
  cuda::SimulatedDevices& devices = *target_->simulated();
  devices.Pause();
  std::vector<StageSlot> slots;
  for (int i = 0; i < 6; ++i) slots.push_back(Take(StageWay::kFromNetwork));
  const auto scatter = [&](int i) {
    const Block block{.dst = At(static_cast<std::uint64_t>(i) * 1000), .src = 0, .len = 1000};
    stager_->Scatter(slots[static_cast<std::size_t>(i)], {&block, 1}, endings_.Next(i));
  };
  const auto await_launches = [&](std::uint64_t count) {
    const Deadline limit = Deadline::After(kTimeout);
    while (stager_->Counters(StageWay::kFromNetwork).launches < count) {
      ASSERT_FALSE(limit.expired());
      std::this_thread::yield();
    }
  };
  for (int i = 0; i < 2; ++i) {
    scatter(i);
    await_launches(static_cast<std::uint64_t>(i) + 1);
  }
  for (int i = 2; i < 6; ++i) scatter(i);
  await_launches(3);
  devices.Resume();
  endings_.Await(6);
  EXPECT_EQ(stager_->Counters(StageWay::kFromNetwork).launches, 3U);
}

TEST_P(SimulatedStagerTest, NothingIsMadeForASlice) {
  const auto before = target_->simulated()->counters();
  for (int i = 0; i < 300; ++i) {
    const StageSlot slot = Take(i % 2 == 0 ? StageWay::kToNetwork : StageWay::kFromNetwork);
    const Block block{.dst = At(0), .src = At(0), .len = 5000};
    if (i % 2 == 0) {
      stager_->Gather(slot, {&block, 1}, endings_.Next(i));
    } else {
      stager_->Scatter(slot, {&block, 1}, endings_.Next(i));
    }
    endings_.Await(static_cast<std::size_t>(i) + 1);
  }
  const auto after = target_->simulated()->counters();
  EXPECT_EQ(after.streams, before.streams);
  EXPECT_EQ(after.events, before.events);
  EXPECT_EQ(after.device_allocations, before.device_allocations);
  EXPECT_EQ(after.pinned_allocations, before.pinned_allocations);
  EXPECT_EQ(after.launches, before.launches + 300);
}

TEST_P(SimulatedStagerTest, ADeviceThatIsLostEndsEverythingByThat) {
  target_->simulated()->Inject(
      {.ordinal = 0, .at = cuda::FaultPoint::kLaunch, .fault = cuda::Fault::kIllegalAddress});
  const StageSlot slot = Take(StageWay::kToNetwork);
  const Block block{.dst = 0, .src = At(0), .len = 5000};
  stager_->Gather(slot, {&block, 1}, endings_.Next(1));
  endings_.Await(1);
  const StageSlot other = Take(StageWay::kFromNetwork);
  const Block there{.dst = At(0), .src = 0, .len = 5000};
  stager_->Scatter(other, {&there, 1}, endings_.Next(2));
  EXPECT_THAT(endings_.Await(2), ::testing::ElementsAre(std::pair(1, std::string("DeviceLost")),
                                                        std::pair(2, std::string("DeviceLost"))));
}

TEST_P(SimulatedStagerTest, ItsEndWaitsForWhatIsInFlightAndDropsTheRest) {
  std::vector<StageSlot> slots;
  for (int i = 0; i < 8; ++i) slots.push_back(Take(StageWay::kToNetwork));
  const Block block{.dst = 0, .src = At(0), .len = kSlotBytes};
  for (int i = 0; i < 8; ++i) {
    stager_->Gather(slots[static_cast<std::size_t>(i)], {&block, 1}, endings_.Next(i));
  }
  slots.clear();
  stager_.reset();
  const auto ended = endings_.Await(0).size();
  EXPECT_LE(ended, 8U);
}

// Like the requests of a lane that has waited too long and dropped them.
TEST_P(SimulatedStagerTest, WhatIsDroppedAtItsEndMayOwnItsSlot) {
  cuda::SimulatedDevices& devices = *target_->simulated();
  devices.Pause();
  const Block block{.dst = 0, .src = At(0), .len = 1000};
  for (unsigned i = 0; i < 8; ++i) {
    auto copy = std::make_shared<StagedCopy>();
    copy->slot = Take(StageWay::kToNetwork);
    BeginGather(stager_.get(), copy, {&block, 1}, [] {});
    const Deadline limit = Deadline::After(kTimeout);
    // A launch that runs and one behind it; further requests wait for others.
    while (stager_->Counters(StageWay::kToNetwork).launches < std::min(i + 1, 2U)) {
      ASSERT_FALSE(limit.expired());
      std::this_thread::yield();
    }
  }
  std::jthread later([&devices] {
    for (int i = 0; i < 2000; ++i) std::this_thread::yield();  // usually the destructor is first
    devices.Resume();
  });
  stager_.reset();
}

INSTANTIATE_TEST_SUITE_P(Simulated, StagerTest, ::testing::ValuesIn(cuda::kSimulatedCases),
                         cuda::DeviceCaseName);
INSTANTIATE_TEST_SUITE_P(Gpu, StagerTest, ::testing::Values(cuda::kRealCase), cuda::DeviceCaseName);
INSTANTIATE_TEST_SUITE_P(Simulated, SimulatedStagerTest, ::testing::ValuesIn(cuda::kSimulatedCases),
                         cuda::DeviceCaseName);

}  // namespace
}  // namespace ferry::transfer
