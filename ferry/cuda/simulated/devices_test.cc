// Tests of the mistakes that simulated devices detect.
#include "ferry/cuda/simulated/devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ferry/cuda/testing/conformance.h"
#include "ferry/cuda/testing/test_kernels.h"

// Behaviour of simulated devices beyond the DeviceApi contract: how they detect mistakes.
namespace ferry::cuda {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kBytes = 16 * kKiB;

std::uint64_t Number(const void* address) { return reinterpret_cast<std::uint64_t>(address); }

class SimulatedDevicesTest : public ::testing::Test {
 protected:
  void Make(const SimulationOptions& options) {
    auto made = SimulatedDevices::Create(options);
    FERRY_ASSERT_OK(made);
    stream_.reset();
    device_.reset();
    pinned_.reset();
    devices_ = *std::move(made);
    stream_ = *devices_->CreateStream(0, StreamPriority::kNormal);
    device_ = *devices_->AllocateDevice(0, kBytes);
    pinned_ = *devices_->AllocatePinned(0, kBytes);
  }
  void SetUp() override { Make({.devices = 2, .seed = 5}); }
  void TearDown() override {
    if (devices_ != nullptr) devices_->Resume();
  }

  Status Copy(CopyKind kind, const void* dst, const void* src, std::size_t bytes = kBytes) {
    const CopyItem item{const_cast<void*>(dst), src, bytes};
    return devices_->Copy(stream_, kind, {&item, 1});
  }
  Status ToDevice() { return Copy(CopyKind::kHostToDevice, device_.data(), pinned_.data()); }
  Status FromDevice() { return Copy(CopyKind::kDeviceToHost, pinned_.data(), device_.data()); }
  Status WaitForAll() { return devices_->Wait(stream_, Soon()); }
  void Fill(std::byte value) {
    std::memset(pinned_.data(), std::to_integer<int>(value), pinned_.size());
  }
  // Fills the device's memory.
  void FillDevice(std::byte value) {
    Fill(value);
    FERRY_ASSERT_OK(ToDevice());
    FERRY_ASSERT_OK(WaitForAll());
  }
  // The contents of the device's memory.
  std::vector<std::byte> Content() {
    EXPECT_TRUE(FromDevice());
    EXPECT_TRUE(WaitForAll());
    return {pinned_.bytes().begin(), pinned_.bytes().end()};
  }

  std::unique_ptr<SimulatedDevices> devices_;
  Stream stream_;
  DeviceBuffer device_;
  PinnedBuffer pinned_;
};

// ---- mistakes that show -------------------------------------------------------------------------

using SimulatedDevicesDeathTest = SimulatedDevicesTest;

TEST_F(SimulatedDevicesDeathTest, TheCpuCannotTouchDeviceMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto* const at = static_cast<volatile char*>(device_.data());
  EXPECT_DEATH((void)*at, "");
  EXPECT_DEATH(at[kBytes - 1] = 1, "");
}

TEST_F(SimulatedDevicesTest, ASlotThatIsWrittenAgainTooEarlyShowsInTheCopy) {
  Fill(std::byte{1});
  devices_->Pause();
  FERRY_ASSERT_OK(ToDevice());
  Fill(std::byte{2});  // the mistake: nobody has waited for the copy's event
  devices_->Resume();
  FERRY_ASSERT_OK(WaitForAll());
  EXPECT_THAT(Content(), Each(std::byte{2}));
}

TEST_F(SimulatedDevicesTest, ABufferThatIsReadTooEarlyHoldsPoison) {
  FillDevice(std::byte{1});
  devices_->Pause();
  FERRY_ASSERT_OK(FromDevice());
  EXPECT_THAT(pinned_.bytes(), Each(kPoisonPending));
  devices_->Resume();
  FERRY_ASSERT_OK(WaitForAll());
  EXPECT_THAT(pinned_.bytes(), Each(std::byte{1}));
}

TEST_F(SimulatedDevicesTest, PoisonTakesNothingFromWorkThatIsQueuedBefore) {
  FillDevice(std::byte{1});
  const PinnedBuffer slot = *devices_->AllocatePinned(0, kBytes);
  const DeviceBuffer target = *devices_->AllocateDevice(0, kBytes);
  std::memset(slot.data(), 2, kBytes);
  devices_->Pause();
  // In stream order the slot is read, then written.
  FERRY_ASSERT_OK(Copy(CopyKind::kHostToDevice, target.data(), slot.data()));
  FERRY_ASSERT_OK(Copy(CopyKind::kDeviceToHost, slot.data(), device_.data()));
  EXPECT_THAT(slot.bytes(), Each(std::byte{2}));
  devices_->Resume();
  FERRY_ASSERT_OK(WaitForAll());
  EXPECT_THAT(slot.bytes(), Each(std::byte{1}));
  FERRY_ASSERT_OK(Copy(CopyKind::kDeviceToHost, pinned_.data(), target.data()));
  FERRY_ASSERT_OK(WaitForAll());
  EXPECT_THAT(pinned_.bytes(), Each(std::byte{2}));
}

TEST_F(SimulatedDevicesTest, MemoryHoldsPoisonWhenItIsNewAndWhenItWasFreed) {
  EXPECT_THAT(pinned_.bytes(), Each(kPoisonAllocated));
  EXPECT_THAT(Content(), Each(kPoisonAllocated));
  PinnedBuffer freed = *devices_->AllocatePinned(0, kBytes);
  const auto stale = freed.bytes();
  std::memset(freed.data(), 1, kBytes);
  freed.reset();
  EXPECT_THAT(stale, Each(kPoisonFreed));
}

TEST_F(SimulatedDevicesTest, MemoryThatGoesBeforeItsCopyLosesTheDevice) {
  for (const bool source : {true, false}) {
    Make({});
    Fill(std::byte{1});
    devices_->Pause();
    FERRY_ASSERT_OK(ToDevice());
    if (source) {
      pinned_.reset();
    } else {
      device_.reset();
    }
    devices_->Resume();
    const Status status = WaitForAll();
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code(), Code::kDeviceLost);
    EXPECT_THAT(status.error().message(), HasSubstr("freed"));
    EXPECT_THAT(status.error().message(), HasSubstr("cudaErrorIllegalAddress"));
    EXPECT_TRUE(devices_->IsLost(0));
  }
}

TEST_F(SimulatedDevicesTest, CopiesOfOtherMemoryThanTheySayAreRefused) {
  std::vector<std::byte> pageable(kBytes);
  DeviceBuffer freed = *devices_->AllocateDevice(0, kBytes);
  void* const stale = freed.data();
  freed.reset();
  auto* const device = static_cast<std::byte*>(device_.data());
  const struct {
    CopyKind kind;
    const void* dst;
    const void* src;
    const char* why;
  } kCases[] = {
      {CopyKind::kHostToDevice, device, pageable.data(), "from 16384 bytes at"},
      {CopyKind::kHostToDevice, device, pageable.data(), "not pinned"},
      {CopyKind::kDeviceToHost, pageable.data(), device, "not pinned"},
      {CopyKind::kHostToDevice, stale, pinned_.data(), "freed"},
      {CopyKind::kHostToDevice, device, device, "not host memory"},
      {CopyKind::kDeviceToDevice, pinned_.data(), device, "host memory"},
      {CopyKind::kDeviceToHost, pinned_.data(), device + 1, "1 bytes beyond the end"},
      {CopyKind::kDeviceToDevice, device, nullptr, "not GPU memory"},
  };
  for (const auto& [kind, dst, src, why] : kCases) {
    const Status status = Copy(kind, dst, src);
    ASSERT_FALSE(status) << why;
    EXPECT_EQ(status.error().code(), Code::kInvalidArgument) << why;
    EXPECT_THAT(status.error().message(), HasSubstr(why));
    EXPECT_THAT(status.error().message(), HasSubstr("cudaErrorInvalidValue"));
  }
  EXPECT_FALSE(devices_->IsLost(0));
}

TEST_F(SimulatedDevicesTest, ItemsOfAListThatOverlapAreRefused) {
  auto* const device = static_cast<std::byte*>(device_.data());
  std::byte* const host = pinned_.bytes().data();
  const auto overlap = [&](std::vector<CopyItem> items, CopyKind kind) {
    const Status status = devices_->Copy(stream_, kind, items);
    return status ? std::string() : status.error().message();
  };
  const CopyKind to_device = CopyKind::kHostToDevice;
  EXPECT_THAT(overlap({{device, host, 8}, {device + 7, host + 8, 8}}, to_device),
              HasSubstr("items 0 and 1"));
  EXPECT_THAT(overlap({{device + 7, host + 8, 8}, {device, host, 8}}, to_device),
              HasSubstr("items 1 and 0"));
  EXPECT_THAT(overlap({{device, device + 100, 8}, {device + 104, device + 8, 8}},
                      CopyKind::kDeviceToDevice),
              HasSubstr("overlap"));
  // Sources may be read twice, and neighbours may touch.
  EXPECT_EQ(
      overlap({{device, host, 8}, {device + 8, host, 8}, {device + 16, host + 4, 8}}, to_device),
      "");
  FERRY_ASSERT_OK(WaitForAll());
}

TEST_F(SimulatedDevicesTest, HandlesThatAreNoneAreRefused) {
  Stream gone = *devices_->CreateStream(0, StreamPriority::kNormal);
  const StreamRef stale = gone;
  gone.reset();
  for (const StreamRef stream : {stale, StreamRef::Foreign(1, stream_.get().native),
                                 StreamRef::Foreign(0, reinterpret_cast<void*>(0x77))}) {
    EXPECT_EQ(devices_->Query(stream).error().code(), Code::kInvalidArgument);
    EXPECT_THAT(devices_->Launch(stream, {"gone", nullptr, nullptr}, {}).error().message(),
                HasSubstr("cudaErrorInvalidResourceHandle"));
  }
}

TEST_F(SimulatedDevicesTest, ADestroyedStreamFinishesItsWork) {
  Fill(std::byte{3});
  const Event done = *devices_->CreateEvent(0, EventTiming::kOff);
  devices_->Pause();
  FERRY_ASSERT_OK(ToDevice());
  FERRY_ASSERT_OK(devices_->Record(done, stream_));
  stream_.reset();
  EXPECT_FALSE(*devices_->Query(done));
  devices_->Resume();
  FERRY_ASSERT_OK(devices_->Wait(done, Soon()));
  stream_ = *devices_->CreateStream(0, StreamPriority::kNormal);
  EXPECT_THAT(Content(), Each(std::byte{3}));
}

// ---- kernels ------------------------------------------------------------------------------------

TEST_F(SimulatedDevicesTest, KernelsThatReachTooFarLoseTheDevice) {
  std::vector<std::uint32_t> words(1024);
  const char* const kReaches[] = {"pageable memory", "registered memory by its host address",
                                  "a peer that was not allowed", "the end of an allocation"};
  for (const std::string reach : kReaches) {
    Make({.devices = 2});
    const DeviceBuffer there = *devices_->AllocateDevice(1, kBytes);
    HostRegistration registered;
    std::uint64_t address = Number(words.data());
    if (reach == kReaches[1]) registered = *devices_->RegisterHost(0, words.data(), 4096);
    if (reach == kReaches[2]) address = Number(there.data());
    if (reach == kReaches[3]) address = Number(device_.data()) + kBytes - 8;
    FERRY_ASSERT_OK(LaunchKernel(
        *devices_, stream_, kAddWords,
        AddArguments{.dst = address, .src = Number(device_.data()), .count = 3, .add = 1}));
    const Status status = WaitForAll();
    ASSERT_FALSE(status) << reach;
    EXPECT_EQ(status.error().code(), Code::kDeviceLost) << reach;
    EXPECT_THAT(status.error().message(), HasSubstr("kernel add_words on device 0")) << reach;
    EXPECT_TRUE(devices_->IsLost(0)) << reach;
    EXPECT_FALSE(devices_->IsLost(1)) << reach;
  }
}

TEST_F(SimulatedDevicesTest, AKernelWithoutAFormForTheCpuIsUnsupported) {
  const Kernel kernel{"gpu_only", nullptr, nullptr};
  EXPECT_EQ(LaunchKernel(*devices_, stream_, kernel, AddArguments{}).error().code(),
            Code::kUnsupported);
}

TEST_F(SimulatedDevicesTest, WhatADeviceCannotDoCanBeChosen) {
  Make({.devices = 2, .flags = false, .peer_access = false});
  EXPECT_FALSE(*ProbeFlags(*devices_, 0));
  EXPECT_FALSE(*devices_->CanAccessPeer(0, 1));
  EXPECT_EQ(devices_->EnablePeerAccess(0, 1).error().code(), Code::kUnsupported);
}

// ---- turns --------------------------------------------------------------------------------------

// The numbers of the streams in the order in which their host functions ran.
class Turns {
 public:
  struct Caller {
    Turns* turns;
    int stream;
    int call;
  };
  static Status Take(EmulatedMemory& /*memory*/, const void* caller) {
    const auto& c = *static_cast<const Caller*>(caller);
    const std::lock_guard lock(c.turns->mutex_);
    c.turns->taken_.push_back(c);
    return Ok();
  }
  std::vector<Caller> taken() {
    const std::lock_guard lock(mutex_);
    return taken_;
  }

 private:
  std::mutex mutex_;
  std::vector<Caller> taken_;
};
constexpr Kernel kTakeTurn{"take a turn", nullptr, Turns::Take};

// The order in which two streams of 40 calls each ran.
std::vector<int> TurnsOf(const SimulationOptions& options) {
  constexpr int kCalls = 40;
  auto devices = *SimulatedDevices::Create(options);
  const Stream streams[] = {*devices->CreateStream(0, StreamPriority::kNormal),
                            *devices->CreateStream(0, StreamPriority::kNormal)};
  Turns turns;
  std::vector<Turns::Caller> callers;
  for (int stream = 0; stream < 2; ++stream) {
    for (int call = 0; call < kCalls; ++call) callers.push_back({&turns, stream, call});
  }
  devices->Pause();
  for (const Turns::Caller& caller : callers) {
    EXPECT_TRUE(LaunchKernel(*devices, streams[caller.stream], kTakeTurn, caller));
  }
  devices->Resume();
  for (const Stream& stream : streams) EXPECT_TRUE(devices->Wait(stream, Soon()));
  int next[] = {0, 0};
  std::vector<int> order;
  for (const Turns::Caller& caller : turns.taken()) {
    EXPECT_EQ(caller.call, next[caller.stream]++) << "stream " << caller.stream;
    order.push_back(caller.stream);
  }
  EXPECT_EQ(order.size(), 2u * kCalls);
  return order;
}

int Switches(const std::vector<int>& order) {
  int switches = 0;
  for (std::size_t i = 1; i < order.size(); ++i) switches += order[i] != order[i - 1] ? 1 : 0;
  return switches;
}

TEST(SimulatedTurns, StreamsInterleaveAndKeepTheirOrder) {
  EXPECT_GE(Switches(TurnsOf({.seed = 1, .workers = 1, .max_delay = microseconds(0)})), 10);
  EXPECT_EQ(TurnsOf({.seed = 1, .workers = 4}).size(), 80u);
}

TEST(SimulatedTurns, TheSeedDecides) {
  const SimulationOptions options{.seed = 1, .workers = 1, .max_delay = microseconds(0)};
  const auto first = TurnsOf(options);
  EXPECT_EQ(TurnsOf(options), first);
  auto other = options;
  other.seed = 2;
  EXPECT_NE(TurnsOf(other), first);
}

// ---- faults -------------------------------------------------------------------------------------

TEST_F(SimulatedDevicesTest, AFaultStrikesTheCallThatItIsMeantFor) {
  devices_->Inject({.at = FaultPoint::kCopy, .fault = Fault::kInvalidValue, .skip = 1});
  FERRY_ASSERT_OK(ToDevice());
  EXPECT_EQ(ToDevice().error().code(), Code::kInvalidArgument);
  FERRY_ASSERT_OK(ToDevice());
  devices_->Inject({.at = FaultPoint::kAllocatePinned, .fault = Fault::kMemoryAllocation});
  EXPECT_EQ(devices_->AllocatePinned(0, 1).error().code(), Code::kUnavailable);
  EXPECT_TRUE(devices_->AllocatePinned(0, 1));
  FERRY_ASSERT_OK(WaitForAll());
  EXPECT_FALSE(devices_->IsLost(0));
}

TEST_F(SimulatedDevicesTest, AStickyFaultOfACopyLosesItsDeviceAndDropsWhatIsQueued) {
  const Stream other = *devices_->CreateStream(1, StreamPriority::kNormal);
  const Event never = *devices_->CreateEvent(0, EventTiming::kOff);
  Turns turns;
  const Turns::Caller caller{&turns, 0, 0};
  FillDevice(std::byte{1});
  devices_->Pause();
  devices_->Inject({.at = FaultPoint::kCopy, .fault = Fault::kIllegalAddress});
  FERRY_ASSERT_OK(FromDevice());
  FERRY_ASSERT_OK(LaunchKernel(*devices_, stream_, kTakeTurn, caller));
  FERRY_ASSERT_OK(devices_->Record(never, stream_));
  FERRY_ASSERT_OK(devices_->WaitFor(other, never));
  EXPECT_FALSE(devices_->IsLost(0));
  devices_->Resume();
  // The other device does not wait for work that was dropped.
  FERRY_ASSERT_OK(devices_->Wait(other, Soon()));
  const auto ready = devices_->Query(never);
  ASSERT_FALSE(ready);
  EXPECT_EQ(ready.error().code(), Code::kDeviceLost);
  EXPECT_TRUE(devices_->IsLost(0));
  EXPECT_FALSE(devices_->IsLost(1));
  EXPECT_THAT(pinned_.bytes(), Each(kPoisonPending));
  EXPECT_TRUE(turns.taken().empty());
}

// A kernel that takes some time.
struct SlowKernel {
  std::atomic<bool> begun{false};
  std::atomic<bool> ended{false};
};
struct SlowArguments {
  SlowKernel* state;
};
Status EmulateSlowly(EmulatedMemory& /*memory*/, const void* arguments) {
  SlowKernel& state = *static_cast<const SlowArguments*>(arguments)->state;
  state.begun = true;
  std::this_thread::sleep_for(milliseconds(50));
  state.ended = true;
  return Ok();
}

TEST_F(SimulatedDevicesTest, ADeviceThatIsSaidToBeLostDoesNothingAnyMore) {
  SlowKernel state;
  const Kernel kernel{"slow", nullptr, EmulateSlowly};
  FERRY_ASSERT_OK(LaunchKernel(*devices_, stream_, kernel, SlowArguments{&state}));
  for (const Deadline limit = Soon(); !state.begun;) {
    ASSERT_FALSE(limit.expired());
    std::this_thread::yield();
  }
  devices_->Inject({.at = FaultPoint::kAllocatePinned, .fault = Fault::kIllegalAddress});
  EXPECT_EQ(devices_->AllocatePinned(0, 1).error().code(), Code::kDeviceLost);
  EXPECT_TRUE(state.ended);
}

TEST_F(SimulatedDevicesTest, MemoryRunsOutAtItsLimitAndComesBack) {
  Make({.device_bytes = 150 * kKiB, .pinned_bytes = 150 * kKiB});  // 16 KiB of each are in use
  for (int round = 0; round < 3; ++round) {
    const auto device = devices_->AllocateDevice(0, 100 * kKiB);
    const auto pinned = devices_->AllocatePinned(0, 100 * kKiB);
    FERRY_ASSERT_OK(device);
    FERRY_ASSERT_OK(pinned);
    EXPECT_EQ(devices_->AllocateDevice(0, 100 * kKiB).error().code(), Code::kUnavailable);
    EXPECT_EQ(devices_->AllocatePinned(0, 100 * kKiB).error().code(), Code::kUnavailable);
  }
}

TEST_F(SimulatedDevicesTest, AddressesOfFreedMemoryAreForgottenInTheEnd) {
  DeviceBuffer buffer = *devices_->AllocateDevice(0, 48 << 20);
  const void* const first = buffer.data();
  for (int i = 0; i < 3; ++i) buffer = *devices_->AllocateDevice(0, 48 << 20);
  EXPECT_FALSE(devices_->Inspect(first));
  EXPECT_TRUE(devices_->Inspect(buffer.data()));
}

TEST_F(SimulatedDevicesTest, ExportsThatAreNoneAreRefused) {
  IpcExport exported = *devices_->Export(device_.data());
  EXPECT_EQ(devices_->Import(1, exported).error().code(), Code::kInvalidArgument);
  exported.handle.fill(std::byte{0});
  EXPECT_EQ(devices_->Import(0, exported).error().code(), Code::kInvalidArgument);
}

// ---- counters -----------------------------------------------------------------------------------

TEST_F(SimulatedDevicesTest, CountersTellThatNothingIsMadePerCopy) {
  const Event event = *devices_->CreateEvent(0, EventTiming::kOff);
  const SimulationCounters before = devices_->counters();
  EXPECT_EQ(before.device_allocations, 1u);
  EXPECT_EQ(before.pinned_allocations, 1u);
  EXPECT_EQ(before.streams, 1u);
  EXPECT_EQ(before.events, 1u);
  SimulationCounters expected = before;
  for (int i = 0; i < 10; ++i) {
    FERRY_ASSERT_OK(ToDevice());
    FERRY_ASSERT_OK(devices_->Record(event, stream_));
    FERRY_ASSERT_OK(devices_->Wait(event, Soon()));
  }
  expected.copy_calls = 10;
  expected.copy_items = 10;
  expected.copy_bytes = 10 * kBytes;
  expected.records = 10;
  EXPECT_EQ(devices_->counters(), expected);
}

}  // namespace
}  // namespace ferry::cuda
