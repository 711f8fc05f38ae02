// Tests which GPUs the compiled device code runs on.
#include "ferry/cuda/device_code.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "ferry/cuda/error.h"

namespace ferry::cuda {
namespace {

constexpr const char* kReleased = "80,86-real,89-real,90a-real,100-real,120";

std::string Told(const char* targets, int major, int minor) {
  const DeviceCode code = CodeFor(targets, major, minor);
  return std::string(CodeKindName(code.kind)) + " " + code.target;
}

TEST(DeviceCode, OfAReleaseRunsOnEveryGpuFromAmpereOn) {
  for (const auto& [major, minor, told] :
       {std::tuple(8, 0, "native 80-real"), std::tuple(8, 6, "native 86-real"),
        std::tuple(8, 9, "native 89-real"), std::tuple(9, 0, "native 90a-real"),
        std::tuple(10, 0, "native 100-real"), std::tuple(10, 3, "native 100-real"),
        std::tuple(12, 0, "native 120-real"), std::tuple(12, 1, "native 120-real"),
        std::tuple(8, 7, "native 86-real"), std::tuple(11, 0, "PTX 80-virtual"),
        std::tuple(13, 0, "PTX 120-virtual"), std::tuple(7, 5, "none ")}) {
    EXPECT_EQ(Told(kReleased, major, minor), told) << major << "." << minor;
  }
}

TEST(DeviceCode, ForHopperAloneRunsNowhereElse) {
  EXPECT_EQ(Told("90a-real", 9, 0), "native 90a-real");
  EXPECT_EQ(Told("90a-real", 8, 0), "none ");
  EXPECT_EQ(Told("90a-real", 10, 0), "none ");
  EXPECT_EQ(Told("90a", 12, 0), "none ") << "nor as PTX";
}

TEST(DeviceCode, IsMachineCodeBeforePtxInWhateverOrder) {
  EXPECT_EQ(Told("90-virtual;80-real;86-real", 8, 9), "native 86-real");
  EXPECT_EQ(Told("80;90a-real", 9, 0), "native 90a-real");
  EXPECT_EQ(Told("90a-real;90-real", 9, 0), "native 90a-real");
  EXPECT_EQ(Told("80-real;80-virtual", 9, 0), "PTX 80-virtual");
}

TEST(DeviceCode, EntriesThatCannotBeReadAreSkipped) {
  EXPECT_EQ(Told("", 9, 0), "none ");
  EXPECT_EQ(Told("native,,x80,80-fake,9,80-real", 8, 6), "native 80-real");
}

TEST(DeviceCode, NamesWhatToBuildWith) {
  EXPECT_EQ(TargetFor(8, 6), "86-real");
  EXPECT_EQ(TargetFor(9, 0), "90a-real");
  EXPECT_EQ(TargetFor(12, 0), "120-real");
  EXPECT_EQ(TargetFor(7, 5), "") << "kernels do not compile for it";
}

TEST(DeviceCode, ThatIsMissingIsToldFromOtherRefusals) {
  for (const Fault fault : {Fault::kNoKernelImageForDevice, Fault::kInvalidValue}) {
    EXPECT_EQ(SaysNoCode(CudaError(fault, "launching a kernel").message()),
              fault == Fault::kNoKernelImageForDevice);
  }
  EXPECT_FALSE(SaysNoCode(NotEnoughSharedMemory("decode", 139776, 101376, 0).message()));
}

}  // namespace
}  // namespace ferry::cuda
