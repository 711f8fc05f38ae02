// Tests of the owners of a device's resources: each is released once, and by nobody else.
#include "ferry/cuda/resources.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "ferry/cuda/simulated/devices.h"
#include "ferry/cuda/testing/conformance.h"

namespace ferry::cuda {
namespace {

constexpr std::size_t kOwnedBytes = 8192;

class ResourcesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto devices = SimulatedDevices::Create({.devices = 2});
    FERRY_ASSERT_OK(devices);
    devices_ = *std::move(devices);
    free_ = *devices_->AvailableMemory(0);
  }
  std::uint64_t InUse() { return free_ - *devices_->AvailableMemory(0); }
  DeviceBuffer Buffer() { return *devices_->AllocateDevice(0, kOwnedBytes); }

  std::unique_ptr<SimulatedDevices> devices_;
  std::uint64_t free_ = 0;
};

TEST_F(ResourcesTest, AnEmptyOwnerHasNothingAndBelongsToNoDevice) {
  const DeviceBuffer buffer;
  EXPECT_FALSE(buffer);
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_EQ(buffer.size(), 0U);
  EXPECT_EQ(buffer.ordinal(), -1);
  EXPECT_TRUE(PinnedBuffer().bytes().empty());
  EXPECT_FALSE(Stream());
  EXPECT_FALSE(Event());
  EXPECT_FALSE(Graph());
}

TEST_F(ResourcesTest, AnOwnerKnowsItsDeviceAndSize) {
  const auto buffer = devices_->AllocateDevice(1, kOwnedBytes);
  const auto stream = devices_->CreateStream(1, StreamPriority::kHigh);
  const auto event = devices_->CreateEvent(1, EventTiming::kOn);
  ASSERT_TRUE(buffer && stream && event);
  EXPECT_EQ(buffer->ordinal(), 1);
  EXPECT_EQ(buffer->size(), kOwnedBytes);
  EXPECT_EQ(stream->ordinal(), 1);
  EXPECT_EQ(event->ordinal(), 1);
  const StreamRef view = *stream;
  EXPECT_EQ(view.ordinal(), 1);
  EXPECT_EQ(view.native(), stream->get().native);
}

TEST_F(ResourcesTest, MemoryIsFreedAtTheEndOfItsScope) {
  {
    const DeviceBuffer buffer = Buffer();
    EXPECT_EQ(InUse(), kOwnedBytes);
  }
  EXPECT_EQ(InUse(), 0U);
}

TEST_F(ResourcesTest, MovingGivesTheMemoryAwayOnce) {
  DeviceBuffer first = Buffer();
  void* const at = first.data();
  DeviceBuffer second = std::move(first);
  EXPECT_FALSE(first);  // NOLINT: what a move leaves is what is tested
  EXPECT_EQ(second.data(), at);
  EXPECT_EQ(InUse(), kOwnedBytes);
  second = Buffer();
  EXPECT_EQ(InUse(), kOwnedBytes) << "what it had is freed";
  second = DeviceBuffer();
  EXPECT_EQ(InUse(), 0U);
}

TEST_F(ResourcesTest, ResetFreesAndMayBeRepeated) {
  DeviceBuffer buffer = Buffer();
  buffer.reset();
  buffer.reset();
  EXPECT_FALSE(buffer);
  EXPECT_EQ(InUse(), 0U);
}

TEST_F(ResourcesTest, WhatIsReleasedIsTheCallersToFree) {
  DeviceBuffer buffer = Buffer();
  const ResourceHandle handle = buffer.release();
  EXPECT_FALSE(buffer);
  EXPECT_EQ(InUse(), kOwnedBytes);
  EXPECT_EQ(handle.api, devices_.get());
  EXPECT_EQ(handle.bytes, kOwnedBytes);
  const DeviceBuffer again(handle);
  EXPECT_EQ(again.data(), handle.native);
}

TEST_F(ResourcesTest, SwapExchangesWhatTwoOwnersHave) {
  DeviceBuffer first = Buffer();
  DeviceBuffer second;
  void* const at = first.data();
  first.swap(second);
  EXPECT_FALSE(first);
  EXPECT_EQ(second.data(), at);
  EXPECT_EQ(InUse(), kOwnedBytes);
}

TEST_F(ResourcesTest, AListOfOwnersMayGrow) {
  std::vector<DeviceBuffer> buffers;
  for (int i = 0; i < 20; ++i) buffers.push_back(Buffer());
  EXPECT_EQ(InUse(), 20 * kOwnedBytes);
  buffers.erase(buffers.begin(), buffers.begin() + 15);
  EXPECT_EQ(InUse(), 5 * kOwnedBytes);
  buffers.clear();
  EXPECT_EQ(InUse(), 0U);
}

TEST_F(ResourcesTest, MemoryOfALostDeviceMayStillGo) {
  DeviceBuffer buffer = Buffer();
  Stream stream = *devices_->CreateStream(0, StreamPriority::kNormal);
  Event event = *devices_->CreateEvent(0, EventTiming::kOff);
  devices_->Inject({.at = FaultPoint::kAllocateDevice, .fault = Fault::kIllegalAddress});
  EXPECT_EQ(devices_->AllocateDevice(0, 1).error().code(), Code::kDeviceLost);
  buffer.reset();
  stream.reset();
  event.reset();
  EXPECT_TRUE(devices_->IsLost(0));
}

TEST_F(ResourcesTest, AForeignStreamIsOnlyAView) {
  int stands_for_a_stream = 0;
  const StreamRef view = StreamRef::Foreign(1, &stands_for_a_stream);
  EXPECT_EQ(view.ordinal(), 1);
  EXPECT_EQ(view.native(), &stands_for_a_stream);
  EXPECT_EQ(StreamRef::Foreign(0, nullptr).native(), nullptr);
}

}  // namespace
}  // namespace ferry::cuda
