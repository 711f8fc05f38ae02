// Tests of captures and graphs of simulated devices.
#include "ferry/cuda/simulated/graphs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "ferry/cuda/simulated/devices.h"
#include "ferry/cuda/testing/conformance.h"
#include "ferry/cuda/testing/test_kernels.h"

namespace ferry::cuda {
namespace {

using ::testing::HasSubstr;

StreamRef FakeStream(int ordinal, std::uintptr_t handle) {
  return StreamRef::Foreign(ordinal, reinterpret_cast<void*>(handle));  // never dereferenced
}

SimulatedWork SomeWork() { return SimulatedFlagWrite{.flag = 64, .value = 1}; }

class SimulatedGraphsTest : public ::testing::Test {
 protected:
  bool Keep(StreamRef stream, std::optional<Fault> fault = std::nullopt) {
    SimulatedWork work = SomeWork();
    return graphs_.Keep(stream, &work, fault);
  }

  SimulatedGraphs graphs_;
  const StreamRef stream_ = FakeStream(0, 0x100);
};

TEST_F(SimulatedGraphsTest, OnlyAStreamThatIsCapturedKeepsItsWork) {
  EXPECT_FALSE(Keep(stream_));
  EXPECT_FALSE(graphs_.Spoil(stream_));
  graphs_.Begin(stream_);
  EXPECT_TRUE(Keep(stream_));
  EXPECT_FALSE(Keep(FakeStream(0, 0x200))) << "another stream";
  EXPECT_FALSE(Keep(FakeStream(1, 0x100))) << "the same handle on another device";
}

TEST_F(SimulatedGraphsTest, AGraphHasItsWorkInOrderWithTheFaults) {
  graphs_.Begin(stream_);
  EXPECT_TRUE(Keep(stream_));
  EXPECT_TRUE(Keep(stream_, Fault::kLaunchFailure));
  const auto graph = graphs_.End(stream_);
  FERRY_ASSERT_OK(graph);
  for (int replay = 0; replay < 2; ++replay) {
    const auto kept = graphs_.WorkOf(*graph);
    FERRY_ASSERT_OK(kept);
    ASSERT_EQ(kept->size(), 2U);
    EXPECT_FALSE((*kept)[0].fault);
    EXPECT_EQ((*kept)[1].fault, Fault::kLaunchFailure);
  }
  EXPECT_FALSE(Keep(stream_)) << "the capture has ended";
}

TEST_F(SimulatedGraphsTest, ACaptureThatIsSpoiledEndsWithoutAGraph) {
  graphs_.Begin(stream_);
  EXPECT_TRUE(Keep(stream_));
  EXPECT_TRUE(graphs_.Spoil(stream_));
  EXPECT_TRUE(Keep(stream_)) << "until it ends nothing runs";
  EXPECT_THAT(graphs_.End(stream_).error().message(),
              HasSubstr("cudaErrorStreamCaptureInvalidated"));
  EXPECT_THAT(graphs_.End(stream_).error().message(), HasSubstr("that is not being captured"));
  graphs_.Begin(stream_);
  EXPECT_TRUE(graphs_.End(stream_)) << "the next one begins anew";
}

TEST_F(SimulatedGraphsTest, ACaptureGoesWithItsStream) {
  graphs_.Begin(stream_);
  graphs_.Forget(stream_);
  graphs_.Forget(stream_);
  EXPECT_FALSE(graphs_.End(stream_));
}

TEST_F(SimulatedGraphsTest, AGraphThatIsRemovedIsUnknown) {
  graphs_.Begin(stream_);
  const auto graph = graphs_.End(stream_);
  FERRY_ASSERT_OK(graph);
  graphs_.Begin(stream_);
  const auto next = graphs_.End(stream_);
  FERRY_ASSERT_OK(next);
  EXPECT_NE(*next, *graph);
  graphs_.Remove(*graph);
  EXPECT_THAT(graphs_.WorkOf(*graph).error().message(),
              HasSubstr("cudaErrorInvalidResourceHandle"));
  EXPECT_TRUE(graphs_.WorkOf(*next));
  EXPECT_FALSE(graphs_.WorkOf(nullptr));
}

// ---- by the devices -----------------------------------------------------------------------------

class CapturedStreamTest : public ::testing::Test {
 protected:
  void SetUp() override {
    devices_ = *SimulatedDevices::Create({.devices = 2});
    stream_ = *devices_->CreateStream(0, StreamPriority::kNormal);
    event_ = *devices_->CreateEvent(0, EventTiming::kOff);
    words_ = *devices_->AllocateDevice(0, 64);
  }
  Status Launch(StreamRef stream) {
    const auto at = reinterpret_cast<std::uint64_t>(words_.data());
    return LaunchKernel(*devices_, stream, kAddWords,
                        AddArguments{.dst = at, .src = at, .count = 4, .add = 1});
  }

  std::unique_ptr<SimulatedDevices> devices_;
  Stream stream_;
  Event event_;
  DeviceBuffer words_;
};

TEST_F(CapturedStreamTest, CallsThatAGraphCannotHoldAreRefusedAndSpoilIt) {
  const auto another = devices_->Capture(stream_, [] { return Ok(); });
  FERRY_ASSERT_OK(another);
  const struct {
    const char* name;
    std::function<Status()> call;
  } cases[] = {
      {"cudaEventRecord", [&] { return devices_->Record(event_, stream_); }},
      {"cudaStreamWaitEvent", [&] { return devices_->WaitFor(stream_, event_); }},
      {"cudaStreamQuery",
       [&]() -> Status {
         FERRY_TRY(devices_->Query(stream_));
         return Ok();
       }},
      {"cuStreamWaitValue32", [&] { return devices_->WaitForFlag(stream_, words_.data(), 0); }},
      {"cuStreamWriteValue32", [&] { return devices_->WriteFlag(stream_, words_.data(), 0); }},
      {"cudaGraphLaunch", [&] { return devices_->Replay(stream_, *another); }},
      {"cudaStreamBeginCapture", [&] { return devices_->BeginCapture(stream_); }},
  };
  for (const auto& [name, call] : cases) {
    FERRY_ASSERT_OK(devices_->BeginCapture(stream_));
    FERRY_ASSERT_OK(Launch(stream_));
    const Status refused = call();
    ASSERT_FALSE(refused) << name;
    EXPECT_THAT(refused.error().message(), HasSubstr(name));
    EXPECT_THAT(refused.error().message(), HasSubstr("cudaErrorStreamCaptureUnsupported")) << name;
    EXPECT_EQ(devices_->EndCapture(stream_).error().code(), Code::kInvalidArgument) << name;
    FERRY_ASSERT_OK(devices_->Wait(stream_, Soon()));
  }
}

TEST_F(CapturedStreamTest, TheDefaultStreamIsNotCaptured) {
  EXPECT_THAT(devices_->BeginCapture(StreamRef::Foreign(0, nullptr)).error().message(),
              HasSubstr("on the default stream of device 0"));
}

TEST_F(CapturedStreamTest, AGraphIsReplayedOnItsDeviceOnly) {
  const auto graph = devices_->Capture(stream_, [&] { return Launch(stream_); });
  FERRY_ASSERT_OK(graph);
  const Stream other = *devices_->CreateStream(1, StreamPriority::kNormal);
  EXPECT_THAT(devices_->Replay(other, *graph).error().message(),
              HasSubstr("of a graph of device 0 on a stream of device 1"));
  FERRY_ASSERT_OK(devices_->Replay(stream_, *graph));
  FERRY_ASSERT_OK(devices_->Wait(stream_, Soon()));
  EXPECT_EQ(devices_->counters().replays, 1U);
}

TEST_F(CapturedStreamTest, AFaultInACaptureStrikesWhenItIsReplayed) {
  devices_->Inject({.at = FaultPoint::kLaunch, .fault = Fault::kIllegalAddress});
  const auto graph = devices_->Capture(stream_, [&] { return Launch(stream_); });
  FERRY_ASSERT_OK(graph);
  FERRY_ASSERT_OK(devices_->Wait(stream_, Soon()));
  EXPECT_FALSE(devices_->IsLost(0));
  FERRY_ASSERT_OK(devices_->Replay(stream_, *graph));
  EXPECT_EQ(devices_->Wait(stream_, Soon()).error().code(), Code::kDeviceLost);
}

TEST_F(CapturedStreamTest, AStreamMayGoInTheMiddleOfItsCapture) {
  FERRY_ASSERT_OK(devices_->BeginCapture(stream_));
  FERRY_ASSERT_OK(Launch(stream_));
  stream_.reset();
  stream_ = *devices_->CreateStream(0, StreamPriority::kNormal);
  FERRY_ASSERT_OK(Launch(stream_));
  FERRY_ASSERT_OK(devices_->Wait(stream_, Soon()));
}

}  // namespace
}  // namespace ferry::cuda
