// Tests of the parts of DeviceApi that are the same for real and simulated GPUs.
#include "ferry/cuda/device_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>

#include "ferry/cuda/simulated/devices.h"
#include "ferry/cuda/testing/conformance.h"
#include "ferry/cuda/testing/forwarding_devices.h"

namespace ferry::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(MaxHeldStreams, AreHalfOfTheQueuesToTheDevice) {
  EXPECT_EQ(MaxHeldStreams(nullptr), 4U);
  EXPECT_EQ(MaxHeldStreams(""), 4U);
  EXPECT_EQ(MaxHeldStreams("many"), 4U);
  EXPECT_EQ(MaxHeldStreams("8"), 4U);
  EXPECT_EQ(MaxHeldStreams("32"), 16U);
  EXPECT_EQ(MaxHeldStreams("1000"), 16U);
  EXPECT_EQ(MaxHeldStreams("2"), 1U);
  EXPECT_EQ(MaxHeldStreams("1"), 0U);
  EXPECT_EQ(MaxHeldStreams("-3"), 0U);
}

TEST(MaxHeldStreams, OfANumberThatFitsNoIntegerAreThoseOfTheDefault) {
  EXPECT_EQ(MaxHeldStreams("99999999999999999999"), 4U);
  EXPECT_EQ(MaxHeldStreams("16 "), 8U);
  EXPECT_EQ(MaxHeldStreams(" 16"), 4U);
}

TEST(DeviceNames, AreThoseOfReportsAndTables) {
  EXPECT_STREQ(MemoryKindName(MemoryKind::kHost), "host");
  EXPECT_STREQ(MemoryKindName(MemoryKind::kPinned), "pinned");
  EXPECT_STREQ(MemoryKindName(MemoryKind::kDevice), "device");
  EXPECT_STREQ(MemoryKindName(MemoryKind::kManaged), "managed");
  EXPECT_STREQ(CopyKindName(CopyKind::kHostToDevice), "H2D");
  EXPECT_STREQ(CopyKindName(CopyKind::kDeviceToHost), "D2H");
  EXPECT_STREQ(CopyKindName(CopyKind::kDeviceToDevice), "D2D");
}

TEST(DeviceFlags, AreReadAsTheyWereWritten) {
  alignas(4) std::uint32_t word = 0;
  for (const std::uint32_t value : {1U, 0x80000000U, ~0U, 0U}) {
    StoreFlag(&word, value);
    EXPECT_EQ(LoadFlag(&word), value);
  }
}

// ---- waiting ------------------------------------------------------------------------------------

// Devices whose queries have the outcomes that a test sets, and whose flags fail as it says.
class ScriptedDevices final : public ForwardingDevices {
 public:
  explicit ScriptedDevices(DeviceApi* inner) : ForwardingDevices(inner) {}

  Result<bool> Query(const Event& event) override {
    return ready_at ? Next() : ForwardingDevices::Query(event);
  }
  Result<bool> Query(StreamRef stream) override {
    return ready_at ? Next() : ForwardingDevices::Query(stream);
  }
  Status WaitForFlag(StreamRef stream, const void* flag, std::uint32_t value) override {
    if (flag_wait) return *flag_wait;
    return ForwardingDevices::WaitForFlag(stream, flag, value);
  }
  Status WriteFlag(StreamRef stream, void* flag, std::uint32_t value) override {
    if (flag_write) return *flag_write;
    return ForwardingDevices::WriteFlag(stream, flag, value);
  }
  Status BeginCapture(StreamRef stream) override {
    if (begin_capture) return *begin_capture;
    return ForwardingDevices::BeginCapture(stream);
  }
  Result<Graph> EndCapture(StreamRef stream) override {
    ++ended_captures;
    return ForwardingDevices::EndCapture(stream);
  }

  // Which query is the one that says so; negative: none; unset: all are forwarded.
  std::optional<int> ready_at;
  int queries = 0;
  std::optional<Error> failure;  // of the query that would say so
  std::optional<Error> flag_wait;
  std::optional<Error> flag_write;
  std::optional<Error> begin_capture;
  int ended_captures = 0;

 private:
  Result<bool> Next() {
    const bool now = queries++ == *ready_at;
    if (now && failure) return *failure;
    return now;
  }
};

class ScriptedDevicesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto devices = SimulatedDevices::Create({});
    FERRY_ASSERT_OK(devices);
    simulated_ = *std::move(devices);
    devices_ = std::make_unique<ScriptedDevices>(simulated_.get());
    stream_ = *simulated_->CreateStream(0, StreamPriority::kNormal);
    event_ = *simulated_->CreateEvent(0, EventTiming::kOff);
  }

  std::unique_ptr<SimulatedDevices> simulated_;
  std::unique_ptr<ScriptedDevices> devices_;
  Stream stream_;
  Event event_;
};

TEST_F(ScriptedDevicesTest, AWaitAsksUntilItIsReady) {
  devices_->ready_at = 0;
  FERRY_ASSERT_OK(devices_->Wait(event_, Soon()));
  EXPECT_EQ(devices_->queries, 1);
  devices_->queries = 0;
  devices_->ready_at = 20;
  FERRY_ASSERT_OK(devices_->Wait(stream_, Soon()));
  EXPECT_EQ(devices_->queries, 21);
}

TEST_F(ScriptedDevicesTest, AWaitWhoseDeadlineHasPassedLooksOnce) {
  const Deadline passed = Deadline::At(Clock::now());
  devices_->ready_at = 0;
  FERRY_ASSERT_OK(devices_->Wait(event_, passed));
  devices_->ready_at = -1;
  devices_->queries = 0;
  const Status late = devices_->Wait(event_, passed);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), Code::kTimedOut);
  EXPECT_EQ(devices_->queries, 1);
}

TEST_F(ScriptedDevicesTest, AWaitThatTimesOutSaysForWhatAndHowLong) {
  devices_->ready_at = -1;
  const Status event = devices_->Wait(event_, Deadline::After(milliseconds(2)));
  const Status stream = devices_->Wait(stream_, Deadline::After(milliseconds(2)));
  ASSERT_FALSE(event);
  ASSERT_FALSE(stream);
  EXPECT_THAT(event.error().message(),
              AllOf(HasSubstr("waiting for an event of device 0: not ready after "),
                    HasSubstr(" ms; see what the device does")));
  EXPECT_THAT(stream.error().message(), HasSubstr("waiting for a stream of device 0"));
}

TEST_F(ScriptedDevicesTest, AWaitEndsWithTheErrorOfAQuery) {
  devices_->ready_at = 3;
  devices_->failure.emplace(Code::kDeviceLost, "fell off the bus");
  const Status status = devices_->Wait(stream_, Soon());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message(), "fell off the bus");
  EXPECT_EQ(devices_->queries, 4);
}

// ---- probing ------------------------------------------------------------------------------------

TEST_F(ScriptedDevicesTest, FlagsThatEitherCallDoesNotSupportDoNotWork) {
  const Error unsupported(Code::kUnsupported, "not here");
  EXPECT_TRUE(*ProbeFlags(*simulated_, 0));
  devices_->flag_write = unsupported;
  EXPECT_FALSE(*ProbeFlags(*devices_, 0));
  devices_->flag_write.reset();
  devices_->flag_wait = unsupported;
  EXPECT_FALSE(*ProbeFlags(*devices_, 0));
  FERRY_ASSERT_OK(simulated_->MakeCurrent(0));  // what was queued did not outlive its memory
}

TEST_F(ScriptedDevicesTest, OtherFailuresOfAProbeAreErrors) {
  devices_->flag_wait.emplace(Code::kDeviceLost, "gone");
  EXPECT_EQ(ProbeFlags(*devices_, 0).error().code(), Code::kDeviceLost);
  EXPECT_EQ(ProbeFlags(*simulated_, 1).error().code(), Code::kInvalidArgument);
  for (const FaultPoint at : {FaultPoint::kStream, FaultPoint::kAllocatePinned}) {
    simulated_->Inject({.at = at, .fault = Fault::kMemoryAllocation});
    EXPECT_EQ(ProbeFlags(*simulated_, 0).error().code(), Code::kUnavailable);
  }
  const auto works = ProbeFlags(*simulated_, 0);
  FERRY_ASSERT_OK(works);
  EXPECT_TRUE(*works) << "nothing of that stays";
}

// ---- captures -----------------------------------------------------------------------------------

TEST_F(ScriptedDevicesTest, ACaptureThatDoesNotBeginGivesNoWork) {
  devices_->begin_capture.emplace(Code::kInvalidArgument, "already");
  bool given = false;
  const auto graph = devices_->Capture(stream_, [&] {
    given = true;
    return Ok();
  });
  ASSERT_FALSE(graph);
  EXPECT_EQ(graph.error().message(), "already");
  EXPECT_FALSE(given);
  EXPECT_EQ(devices_->ended_captures, 0);
}

TEST_F(ScriptedDevicesTest, ACaptureIsEndedWhateverItsWorkSays) {
  EXPECT_TRUE(devices_->Capture(stream_, [] { return Ok(); }));
  const auto failed =
      devices_->Capture(stream_, []() -> Status { return Error(Code::kUnavailable, "no more"); });
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), Code::kUnavailable);
  EXPECT_EQ(devices_->ended_captures, 2);
  // The work's own error goes before that of a capture that it has spoiled.
  const auto spoiled = devices_->Capture(stream_, [&]() -> Status {
    FERRY_TRY(simulated_->Query(stream_));
    return Ok();
  });
  ASSERT_FALSE(spoiled);
  EXPECT_THAT(spoiled.error().message(), HasSubstr("cudaStreamQuery"));
}

}  // namespace
}  // namespace ferry::cuda
