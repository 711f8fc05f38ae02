// Tests of the setting `devices`.
#include "ferry/cuda/open_devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "ferry/cuda/profile_range.h"

namespace ferry::cuda {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

Result<DeviceApi*> Open(const std::string& text) {
  Config config;
  EXPECT_TRUE(config.Set("devices", text)) << text;
  return OpenDevices(config);
}

TEST(OpenDevices, WithoutGpusSaysWhy) {
  const auto devices = Open("auto");
  if (devices) {
    EXPECT_GE((*devices)->count(), 1);
    EXPECT_EQ(*Open("auto"), *devices);
    return;
  }
  EXPECT_THAT(devices.error().code(), AnyOf(Code::kUnsupported, Code::kUnavailable));
  const auto says = *DeviceCodeTargets() == '\0'
                        ? ::testing::Matcher<const std::string&>(HasSubstr("without CUDA"))
                        : AnyOf(HasSubstr("cudaGetDeviceCount"), HasSubstr("no NVIDIA driver"));
  EXPECT_THAT(devices.error().message(), says);
}

TEST(OpenDevices, CanBeTurnedOff) {
  const auto devices = Open("none");
  ASSERT_FALSE(devices);
  EXPECT_EQ(devices.error().code(), Code::kUnsupported);
  EXPECT_THAT(devices.error().message(), HasSubstr("FERRY_DEVICES"));
}

TEST(OpenDevices, SimulatesAsManyAsItIsTold) {
  const auto three = Open("simulated:3");
  ASSERT_TRUE(three) << three.error().ToString();
  EXPECT_EQ((*three)->count(), 3);
  EXPECT_EQ(*Open("simulated:3"), *three);
  const auto seeded = Open("simulated:3:9");
  ASSERT_TRUE(seeded);
  EXPECT_NE(*seeded, *three);
}

TEST(OpenDevices, RefusesSimulationsThatAreNone) {
  for (const char* text : {"0", "17", "2:", ":", "1:2:3"}) {
    Config config;
    config.devices = DeviceChoice::Simulated(text);
    const auto devices = OpenDevices(config);
    ASSERT_FALSE(devices) << text;
    EXPECT_EQ(devices.error().code(), Code::kInvalidArgument) << text;
  }
}

TEST(OpenDevices, ASeedIsANumberThatFits) {
  EXPECT_TRUE(Open("simulated:1:18446744073709551615"));
  for (const char* text :
       {"1:18446744073709551616", "1:-1", "1:x", "1 ", "99999999999", "-1", "x"}) {
    Config config;
    config.devices = DeviceChoice::Simulated(text);
    const auto devices = OpenDevices(config);
    ASSERT_FALSE(devices) << text;
    EXPECT_EQ(devices.error().code(), Code::kInvalidArgument) << text;
  }
}

TEST(OpenDevices, WhatIsRefusedOnceIsRefusedAgain) {
  Config config;
  ASSERT_TRUE(config.Set("devices", "simulated:0"));
  const auto first = OpenDevices(config);
  const auto second = OpenDevices(config);
  ASSERT_FALSE(first);
  ASSERT_FALSE(second);
  EXPECT_EQ(first.error().message(), second.error().message());
}

TEST(MayHaveDeviceMemory, FollowsTheSetting) {
  Config config;
  config.devices = DeviceChoice::None();
  EXPECT_FALSE(MayHaveDeviceMemory(config));
  config.devices = DeviceChoice::Simulated("1");
  EXPECT_TRUE(MayHaveDeviceMemory(config)) << "whether they are open yet or not";
  config.devices = {};
  const bool loaded = MayHaveDeviceMemory(config);
  EXPECT_EQ(MayHaveDeviceMemory(config), loaded) << "the same when asked again";
  EXPECT_FALSE(*DeviceCodeTargets() == '\0' && loaded);
}

TEST(ProfileRanges, MayBeNestedWithoutAProfiler) {
  const ProfileRange outer("outer");
  for (int i = 0; i < 3; ++i) {
    const ProfileRange inner(std::to_string(i).c_str());  // the name need not live longer
  }
}

}  // namespace
}  // namespace ferry::cuda
