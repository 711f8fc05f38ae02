// Tests transfers between GPUs that cannot run the kernels of this build.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "ferry/core/testing/random_bytes.h"
#include "ferry/cuda/open_devices.h"
#include "ferry/transfer/testing/device_mirror.h"

namespace ferry::transfer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::size_t kNoKernelsSize = 300'001;

// `devices` is a value of its own for each test: a warning is given once for a device.
class NoKernelsTest : public ::testing::Test {
 protected:
  void Open(const char* devices, AutoOff cuda_ipc) {
    ::testing::internal::CaptureStderr();
    Config config = SmallSlices();
    ASSERT_TRUE(config.Set("devices", devices));
    config.cuda_ipc = cuda_ipc;
    api_ = Must(cuda::OpenDevices(config));
    link_ = MakeLink(config);
  }
  // Writes and reads with checksums, and returns what was logged since Open().
  std::string TransferBothWays(Path path) {
    Connection& near = *link_.near.connection;
    MirroredMemory source(api_, 0, kNoKernelsSize, 1);
    MirroredMemory target(api_, 1, kNoKernelsSize, 2);
    MirroredMemory back(api_, 0, kNoKernelsSize, 3);
    const Region from = Must(link_.near.endpoint->Register(source.span(), Rights::kNone));
    const Region into = Must(link_.near.endpoint->Register(back.span(), Rights::kNone));
    const Region to = Must(link_.far.endpoint->Register(target.span(), Rights::kReadWrite));
    const RemoteRegion remote = to.remote();
    // Pages in the reverse order, and a rest of odd length.
    BlockList pages;
    constexpr std::uint64_t kPage = 1000;
    for (std::uint64_t i = 0; i < 300; ++i) {
      pages.Add({.dst = i * kPage, .src = (299 - i) * kPage, .len = kPage});
    }
    pages.Add({.dst = 300'000, .src = 300'000, .len = 1});
    const auto write = Must(near.PrepareWrite({{&from, &remote, pages}}));
    EXPECT_EQ(write.path().path, path);
    EXPECT_TRUE(EndsOk(Must(near.Write(write, {.checksum = true}))));
    const auto read = Must(near.PrepareRead({{&into, &remote, pages}}));
    EXPECT_TRUE(EndsOk(Must(near.Read(read, {.checksum = true}))));
    EXPECT_TRUE(SameBytes(back.Copy(), source.Copy())) << "reversed twice";
    EXPECT_NE(target.Copy(), source.Copy());
    EXPECT_TRUE(target.GuardsIntact());
    EXPECT_TRUE(back.GuardsIntact());
    return ::testing::internal::GetCapturedStderr();
  }
  static std::size_t CountOf(const std::string& what, const std::string& text) {
    std::size_t count = 0;
    for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
    return count;
  }

  cuda::DeviceApi* api_ = nullptr;
  Link link_;
};

TEST_F(NoKernelsTest, BytesGoOverTcpByTheCopyEngineAndEachGpuIsWarnedOfOnce) {
  Open("simulated:2:31:no-kernels", AutoOff::kOff);
  const std::string log = TransferBothWays(Path::kNetwork);
  for (const char* const gpu : {"data of GPU 0, ", "data of GPU 1, "}) {
    EXPECT_EQ(CountOf(gpu, log), 1U) << log;
  }
  EXPECT_EQ(CountOf("[warn]", log), 2U) << log;
  EXPECT_THAT(
      log, AllOf(HasSubstr("GPU 1 (simulated device, compute capability 9.0) cannot run"),
                 HasSubstr("for this GPU, -DFERRY_CUDA_ARCH=90a-real (CMAKE_CUDA_ARCHITECTURES)"),
                 HasSubstr("cudaErrorNoKernelImageForDevice")));
}

TEST_F(NoKernelsTest, GpusOfOneMachineCopyByTheCopyEngineAndEachIsWarnedOfOnce) {
  Open("simulated:2:32:no-kernels", AutoOff::kAuto);
  const std::string log = TransferBothWays(Path::kGpuCopy);
  EXPECT_EQ(CountOf("[warn]", log), 2U) << log;
}

}  // namespace
}  // namespace ferry::transfer
