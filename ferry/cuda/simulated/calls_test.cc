// Tests of every call of simulated devices with what does not fit, on lost devices, and with
// injected faults.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ferry/cuda/address.h"
#include "ferry/cuda/error.h"
#include "ferry/cuda/simulated/devices.h"
#include "ferry/cuda/testing/conformance.h"
#include "ferry/cuda/testing/test_kernels.h"

namespace ferry::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::size_t kRoom = 4096;

class SimulatedCallsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = SimulatedDevices::Create({.devices = 2});
    FERRY_ASSERT_OK(made);
    devices_ = *std::move(made);
    stream_ = *devices_->CreateStream(0, StreamPriority::kNormal);
    event_ = *devices_->CreateEvent(0, EventTiming::kOn);
    device_ = *devices_->AllocateDevice(0, kRoom);
    pinned_ = *devices_->AllocatePinned(0, kRoom);
    graph_ = *devices_->Capture(stream_, [] { return Ok(); });
    exported_ = *devices_->Export(device_.data());
  }

  // A call for device 0, by the name under which errors have it.
  struct Call {
    const char* name;
    std::function<Status()> call;
  };
  template <class T>
  static Status StatusOf(const Result<T>& result) {
    return result ? Ok() : Status(result.error());
  }
  Status CopyToDevice(std::size_t bytes = kRoom) {
    const CopyItem item{device_.data(), pinned_.data(), bytes};
    return devices_->Copy(stream_, CopyKind::kHostToDevice, {&item, 1});
  }
  std::uint64_t Word() const { return AddressOf(device_.data()); }
  Status LaunchOnWord() {
    return LaunchKernel(*devices_, stream_, kAddWords,
                        AddArguments{.dst = Word(), .src = Word(), .count = 1});
  }

  // Every call that takes device 0 or something of it.
  std::vector<Call> Calls() {
    SimulatedDevices& d = *devices_;
    return {
        {"cudaMemGetInfo", [&] { return StatusOf(d.AvailableMemory(0)); }},
        {"cudaMalloc", [&] { return StatusOf(d.AllocateDevice(0, 1)); }},
        {"cudaHostAlloc", [&] { return StatusOf(d.AllocatePinned(0, 1)); }},
        {"cudaHostRegister", [&] { return StatusOf(d.RegisterHost(0, host_.data(), 1)); }},
        {"cuPointerGetAttributes", [&] { return StatusOf(d.MappedAddress(0, pinned_.data())); }},
        {"cuCtxPushCurrent", [&] { return StatusOf(d.MakeCurrent(0)); }},
        {"cudaDeviceCanAccessPeer", [&] { return StatusOf(d.CanAccessPeer(0, 1)); }},
        {"cudaDeviceEnablePeerAccess", [&] { return d.EnablePeerAccess(0, 1); }},
        {"cudaIpcOpenMemHandle", [&] { return StatusOf(d.Import(0, exported_)); }},
        {"cudaStreamCreateWithPriority",
         [&] { return StatusOf(d.CreateStream(0, StreamPriority::kHigh)); }},
        {"cudaEventCreateWithFlags", [&] { return StatusOf(d.CreateEvent(0, EventTiming::kOff)); }},
        {"cudaEventRecord", [&] { return d.Record(event_, stream_); }},
        {"cudaStreamWaitEvent", [&] { return d.WaitFor(stream_, event_); }},
        {"cudaEventQuery", [&] { return StatusOf(d.Query(event_)); }},
        {"cudaStreamQuery", [&] { return StatusOf(d.Query(stream_)); }},
        {"cudaEventElapsedTime", [&] { return StatusOf(d.Elapsed(event_, event_)); }},
        {"cudaMemcpyAsync", [&] { return CopyToDevice(); }},
        {"launching add_words", [&] { return LaunchOnWord(); }},
        {"cudaStreamBeginCapture", [&] { return d.BeginCapture(stream_); }},
        {"cudaStreamEndCapture", [&] { return StatusOf(d.EndCapture(stream_)); }},
        {"cudaGraphLaunch", [&] { return d.Replay(stream_, graph_); }},
        {"cuStreamWaitValue32", [&] { return d.WaitForFlag(stream_, device_.data(), 0); }},
        {"cuStreamWriteValue32", [&] { return d.WriteFlag(stream_, device_.data(), 0); }},
    };
  }
  void LoseDevice0() {
    devices_->Inject({.at = FaultPoint::kStream, .fault = Fault::kIllegalAddress});
    EXPECT_EQ(devices_->CreateStream(0, StreamPriority::kNormal).error().code(), Code::kDeviceLost);
  }

  std::array<std::byte, 64> host_{};
  std::unique_ptr<SimulatedDevices> devices_;
  Stream stream_;
  Event event_;
  DeviceBuffer device_;
  PinnedBuffer pinned_;
  Graph graph_;
  IpcExport exported_;
};

// ---- lost devices -------------------------------------------------------------------------------

TEST_F(SimulatedCallsTest, EveryCallForALostDeviceSaysThatItIsLost) {
  LoseDevice0();
  for (const auto& [name, call] : Calls()) {
    const Status status = call();
    ASSERT_FALSE(status) << name;
    EXPECT_EQ(status.error().code(), Code::kDeviceLost) << name;
    EXPECT_THAT(status.error().message(),
                AllOf(HasSubstr(name), HasSubstr("device 0 was lost by an earlier failure")));
  }
  EXPECT_TRUE(devices_->Describe(0)) << "facts are known all the same";
  EXPECT_TRUE(devices_->Inspect(pinned_.data()));
  EXPECT_TRUE(devices_->AllocateDevice(1, 1)) << "and the other device works";
}

TEST_F(SimulatedCallsTest, TheFirstCallAfterAFailureTellsItsCause) {
  devices_->Inject({.at = FaultPoint::kCopy, .fault = Fault::kLaunchFailure});
  FERRY_ASSERT_OK(CopyToDevice());
  const Status first = devices_->Wait(stream_, Soon());
  ASSERT_FALSE(first);
  EXPECT_THAT(first.error().message(),
              AllOf(HasSubstr("cudaStreamQuery on device 0, after work that was told to fail"),
                    HasSubstr("cudaErrorLaunchFailure (unspecified launch failure)")));
  EXPECT_THAT(devices_->MakeCurrent(0).error().message(), HasSubstr("by an earlier failure"));
}

TEST_F(SimulatedCallsTest, ADeviceIsCurrentOnItsThreadUntilItsOwnerGoes) {
  const auto first = devices_->MakeCurrent(1);
  EXPECT_EQ(SimulatedDevices::current(), 1);
  {
    const auto second = devices_->MakeCurrent(0);
    EXPECT_EQ(SimulatedDevices::current(), 0);
  }
  EXPECT_EQ(SimulatedDevices::current(), 1);
}

// ---- faults -------------------------------------------------------------------------------------

TEST_F(SimulatedCallsTest, AnInjectedFaultStrikesOneCallOfItsKindAndDevice) {
  const struct {
    FaultPoint at;
    const char* name;
  } kPoints[] = {{FaultPoint::kAllocateDevice, "cudaMalloc"},
                 {FaultPoint::kAllocatePinned, "cudaHostAlloc"},
                 {FaultPoint::kRegister, "cudaHostRegister"},
                 {FaultPoint::kPeerAccess, "cudaDeviceEnablePeerAccess"},
                 {FaultPoint::kStream, "cudaStreamCreateWithPriority"},
                 {FaultPoint::kEvent, "cudaEventCreateWithFlags"},
                 {FaultPoint::kCopy, "cudaMemcpyAsync"},
                 {FaultPoint::kLaunch, "launching add_words"},
                 {FaultPoint::kFlag, "cuStreamWaitValue32"}};
  for (const auto& [at, name] : kPoints) {
    // One for another device stays where it is.
    devices_->Inject({.ordinal = 1, .at = at, .fault = Fault::kNotSupported});
    devices_->Inject({.at = at, .fault = Fault::kMemoryAllocation});
    for (const Call& call : Calls()) {
      if (call.name != std::string_view(name)) continue;
      const Status struck = call.call();
      ASSERT_FALSE(struck) << name;
      EXPECT_EQ(struck.error().code(), Code::kUnavailable) << name;
      EXPECT_THAT(struck.error().message(),
                  AllOf(HasSubstr(name), HasSubstr("on device 0: cudaErrorMemoryAllocation")));
      FERRY_ASSERT_OK(call.call());
    }
  }
  EXPECT_FALSE(devices_->IsLost(0));
}

TEST_F(SimulatedCallsTest, FaultsOfOneKindStrikeInTheirOrder) {
  devices_->Inject({.at = FaultPoint::kEvent, .fault = Fault::kMemoryAllocation, .skip = 1});
  devices_->Inject({.at = FaultPoint::kEvent, .fault = Fault::kNotSupported});
  const auto make = [&] { return StatusOf(devices_->CreateEvent(0, EventTiming::kOff)); };
  FERRY_ASSERT_OK(make());
  EXPECT_EQ(make().error().code(), Code::kUnavailable);
  EXPECT_EQ(make().error().code(), Code::kUnsupported);
  FERRY_ASSERT_OK(make());
}

// ---- arguments ----------------------------------------------------------------------------------

TEST_F(SimulatedCallsTest, MemoryOfNoBytesIsRefused) {
  for (const auto& status :
       {StatusOf(devices_->AllocateDevice(0, 0)), StatusOf(devices_->AllocatePinned(0, 0)),
        StatusOf(devices_->RegisterHost(0, host_.data(), 0))}) {
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code(), Code::kInvalidArgument);
    EXPECT_THAT(status.error().message(), HasSubstr("of 0 bytes"));
  }
}

TEST_F(SimulatedCallsTest, CopiesOfNothingAreDoneAtOnce) {
  const SimulationCounters before = devices_->counters();
  devices_->Pause();
  FERRY_ASSERT_OK(devices_->Copy(stream_, CopyKind::kHostToDevice, {}));
  FERRY_ASSERT_OK(CopyToDevice(0));
  EXPECT_TRUE(*devices_->Query(stream_));
  devices_->Resume();
  const SimulationCounters after = devices_->counters();
  EXPECT_EQ(after.copy_calls - before.copy_calls, 2U);
  EXPECT_EQ(after.copy_items - before.copy_items, 1U);
  EXPECT_EQ(after.copy_bytes, before.copy_bytes);
}

TEST_F(SimulatedCallsTest, ArgumentsOfAKernelHaveALimit) {
  std::vector<std::byte> arguments(kMaxArgumentBytes);
  const Kernel kernel{"wide", nullptr, [](EmulatedMemory&, const void*) { return Ok(); }};
  FERRY_ASSERT_OK(devices_->Launch(stream_, kernel, arguments));
  FERRY_ASSERT_OK(devices_->Launch(stream_, kernel, {}));
  arguments.emplace_back();
  EXPECT_THAT(devices_->Launch(stream_, kernel, arguments).error().message(),
              HasSubstr("launching wide with 4097 bytes of arguments"));
  FERRY_ASSERT_OK(devices_->Wait(stream_, Soon()));
}

TEST_F(SimulatedCallsTest, TimeIsMeasuredBetweenReadyEventsWithTiming) {
  const Event later = *devices_->CreateEvent(0, EventTiming::kOn);
  const Event untimed = *devices_->CreateEvent(0, EventTiming::kOff);
  EXPECT_THAT(devices_->Elapsed(event_, later).error().message(), HasSubstr("never recorded"));
  devices_->Pause();
  for (const Event* event : {&std::as_const(event_), &later, &untimed}) {
    FERRY_ASSERT_OK(devices_->Record(*event, stream_));
  }
  const auto early = devices_->Elapsed(event_, later);
  ASSERT_FALSE(early);
  EXPECT_EQ(early.error().code(), Code::kUnavailable);
  EXPECT_THAT(early.error().message(), HasSubstr("cudaErrorNotReady"));
  devices_->Resume();
  FERRY_ASSERT_OK(devices_->Wait(later, Soon()));
  EXPECT_GE(devices_->Elapsed(event_, later)->count(), 0);
  for (const auto& wrong :
       {devices_->Elapsed(untimed, later), devices_->Elapsed(event_, untimed)}) {
    EXPECT_EQ(wrong.error().code(), Code::kInvalidArgument);
  }
}

TEST_F(SimulatedCallsTest, FlagsLieInAlignedMemoryThatKernelsReach) {
  auto* const device = static_cast<std::byte*>(device_.data());
  const struct {
    void* flag;
    const char* why;
  } kCases[] = {{device + 1, "unaligned"},
                {device + kRoom - 2, "beyond the end"},
                {host_.data(), "not GPU memory"},
                {nullptr, "not GPU memory"}};
  for (const auto& [flag, why] : kCases) {
    for (const Status& refused :
         {devices_->WaitForFlag(stream_, flag, 1), devices_->WriteFlag(stream_, flag, 1)}) {
      ASSERT_FALSE(refused) << why;
      EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
      EXPECT_THAT(refused.error().message(), HasSubstr(why));
    }
  }
}

TEST_F(SimulatedCallsTest, ImportsComeFromADeviceThatIsVisible) {
  IpcExport far = exported_;
  far.pci_bus_id = "0000:7f:00.0";
  const auto imported = devices_->Import(0, far);
  ASSERT_FALSE(imported);
  EXPECT_THAT(imported.error().message(),
              AllOf(HasSubstr("of memory of 0000:7f:00.0, which is not visible here"),
                    HasSubstr("cudaErrorInvalidDevice")));
}

TEST_F(SimulatedCallsTest, PeersAreTwoDevices) {
  EXPECT_TRUE(*devices_->CanAccessPeer(0, 1));
  EXPECT_FALSE(*devices_->CanAccessPeer(1, 1));
  EXPECT_EQ(devices_->EnablePeerAccess(1, 1).error().code(), Code::kUnsupported);
  EXPECT_EQ(devices_->CanAccessPeer(0, 2).error().code(), Code::kInvalidArgument);
}

TEST_F(SimulatedCallsTest, AsManyDevicesAreSimulatedAsItIsAllowed) {
  for (const int devices : {-1, 0, 17}) {
    const auto made = SimulatedDevices::Create({.devices = devices});
    ASSERT_FALSE(made) << devices;
    EXPECT_THAT(made.error().message(), HasSubstr("allowed is 1..16"));
  }
  const auto four = SimulatedDevices::Create({.devices = 4});
  FERRY_ASSERT_OK(four);
  EXPECT_EQ((*four)->Describe(3)->pci_bus_id, "0000:04:00.0");
  EXPECT_EQ((*four)->Describe(4).error().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace ferry::cuda
