// Tests of GPU memory with pinned host memory beside it.

#include "tools/support/gpu_mirror.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "ferry/core/units.h"
#include "ferry/cuda/open_devices.h"

namespace ferry::tools {
namespace {

// Devices of the test's own: those of a name are shared by the whole program.
Config TwoGpus(const std::string& seed) {
  Config config;
  config.devices = DeviceChoice::Simulated("2:" + seed);
  return config;
}

TEST(MemoryChoice, IsHostOrAGpu) {
  EXPECT_TRUE(MemoryChoice::Parse("host")->is_host());
  EXPECT_EQ(MemoryChoice::Parse("cuda")->ordinal, 0);
  EXPECT_EQ(MemoryChoice::Parse("cuda:12")->ordinal, 12);
  EXPECT_EQ(MemoryChoice::Parse("cuda:12")->ToString(), "cuda:12");
  for (const char* wrong : {"", "cuda:", "cuda:-1", "cuda:1x", "cuda1", "gpu", "Host"}) {
    const auto choice = MemoryChoice::Parse(wrong);
    ASSERT_FALSE(choice) << wrong;
    EXPECT_EQ(choice.error().code(), Code::kInvalidArgument);
  }
}

TEST(MemoryChoice, AGpuThatThereIsNotCannotBeOpened) {
  const Config config = TwoGpus("101");
  EXPECT_EQ(*MemoryChoice{}.Open(config), nullptr);
  EXPECT_TRUE(MemoryChoice{1}.Open(config));
  EXPECT_EQ(MemoryChoice{2}.Open(config).error().code(), Code::kInvalidArgument);
  Config none;
  none.devices = DeviceChoice::None();
  EXPECT_EQ(MemoryChoice{0}.Open(none).error().code(), Code::kUnsupported);
}

TEST(GpuMirror, MovesWhatItIsToldAndNothingElse) {
  auto mirror = GpuMirror::Allocate({1}, 10000, TwoGpus("102"));
  ASSERT_TRUE(mirror) << mirror.error().ToString();
  std::memset(mirror->host().data(), 1, 10000);
  ASSERT_TRUE(mirror->Move(cuda::CopyKind::kHostToDevice, 0, 10000));
  std::memset(mirror->host().data(), 2, 10000);
  ASSERT_TRUE(mirror->Move(cuda::CopyKind::kHostToDevice, 101, 1000));
  std::memset(mirror->host().data(), 3, 10000);
  ASSERT_TRUE(mirror->Move(cuda::CopyKind::kDeviceToHost, 100, 9000));
  const auto host = mirror->host();
  EXPECT_EQ(host[99], std::byte{3});
  EXPECT_EQ(host[100], std::byte{1});
  EXPECT_EQ(host[101], std::byte{2});
  EXPECT_EQ(host[1100], std::byte{2});
  EXPECT_EQ(host[1101], std::byte{1});
  EXPECT_EQ(host[9099], std::byte{1});
  EXPECT_EQ(host[9100], std::byte{3});
}

TEST(GpuMirror, MoreThanAGpuHasIsASentence) {
  const Config config = TwoGpus("103");
  const auto api = cuda::OpenDevices(config);
  ASSERT_TRUE(api);
  const auto others = (*api)->AllocateDevice(0, kGiB - kMiB);
  ASSERT_TRUE(others);
  const auto mirror = GpuMirror::Allocate({0}, 2 * kMiB, config);
  ASSERT_FALSE(mirror);
  EXPECT_EQ(mirror.error().code(), Code::kUnavailable);
  EXPECT_NE(mirror.error().message().find("out of memory"), std::string::npos)
      << mirror.error().message();
  EXPECT_TRUE(GpuMirror::Allocate({1}, 2 * kMiB, config)) << "the other has all of its own";
}

}  // namespace
}  // namespace ferry::tools
