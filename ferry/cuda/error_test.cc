// Tests of the texts and codes of CUDA errors.
#include "ferry/cuda/error.h"

#include <gtest/gtest.h>

#include <string>

#include "ferry/cuda/address.h"

namespace ferry::cuda {
namespace {

TEST(CudaError, SaysWhatWasTriedWhatCudaSaysAndWhatToDo) {
  const Error error = CudaError(Fault::kMemoryAllocation, "cudaMalloc of 8 bytes on device 0");
  EXPECT_EQ(error.code(), Code::kUnavailable);
  EXPECT_EQ(error.message(),
            "cudaMalloc of 8 bytes on device 0: cudaErrorMemoryAllocation (out of memory); free "
            "memory, or ask for less");
}

TEST(CudaError, CodesAreRemedies) {
  EXPECT_EQ(CudaError(Fault::kInvalidValue, "").code(), Code::kInvalidArgument);
  EXPECT_EQ(CudaError(Fault::kInsufficientDriver, "").code(), Code::kUnsupported);
  EXPECT_EQ(CudaError(Fault::kIllegalAddress, "").code(), Code::kDeviceLost);
  EXPECT_EQ(CudaError(Fault::kNotSupported, "").code(), Code::kUnsupported);
}

TEST(CudaError, OnesThatNobodyKnowsAreInternal) {
  const Error error = CudaError(12345, "cudaErrorNew", "something new", "cudaFree");
  EXPECT_EQ(error.code(), Code::kInternal);
  EXPECT_EQ(error.message(),
            "cudaFree: cudaErrorNew (something new); compare with what nvidia-smi shows of driver "
            "and GPUs");
  EXPECT_FALSE(IsSticky(12345));
}

TEST(CudaError, TellsHowMuchSharedMemoryIsNeededAndThere) {
  const Error error = NotEnoughSharedMemory("attention_decode", 139776, 101376, 1);
  EXPECT_EQ(error.code(), Code::kUnsupported);
  EXPECT_EQ(error.message(),
            "attention_decode needs 139776 bytes of shared memory for a thread block, and device 1 "
            "has 101376; use fewer stages, or a GPU with more");
}

// A sticky error loses the device; no other error does.
TEST(CudaError, IsStickyExactlyWhereTheDeviceIsLost) {
  for (int number = 1; number < 1000; ++number) {
    const bool lost = CudaError(number, "", "", "").code() == Code::kDeviceLost;
    EXPECT_EQ(IsSticky(number), lost) << number;
  }
  EXPECT_TRUE(IsSticky(static_cast<int>(Fault::kIllegalAddress)));
  EXPECT_TRUE(IsSticky(static_cast<int>(Fault::kLaunchFailure)));
  EXPECT_FALSE(IsSticky(0));
}

TEST(CudaError, EveryFaultHasItsRow) {
  for (const Fault fault :
       {Fault::kInvalidValue, Fault::kMemoryAllocation, Fault::kInsufficientDriver,
        Fault::kNoDevice, Fault::kInvalidDevice, Fault::kDeviceUninitialized,
        Fault::kMapBufferObjectFailed, Fault::kPeerAccessUnsupported, Fault::kInvalidResourceHandle,
        Fault::kNoKernelImageForDevice, Fault::kNotReady, Fault::kIllegalAddress,
        Fault::kPeerAccessAlreadyEnabled, Fault::kHostMemoryAlreadyRegistered,
        Fault::kLaunchFailure, Fault::kNotSupported}) {
    EXPECT_NE(CudaError(fault, "").code(), Code::kInternal) << static_cast<int>(fault);
  }
}

TEST(CudaError, EndsWithWhatToDoNext) {
  const struct {
    int number;
    Code code;
    const char* next_step;
  } kCases[] = {
      {1, Code::kInvalidArgument, "check the address, size, stream and device of the call"},
      {2, Code::kUnavailable, "free memory, or ask for less"},
      {9, Code::kInvalidArgument, "check the launch's grid and shared memory"},
      {34, Code::kUnsupported, "put the driver's own libcuda.so.1 before the toolkit's stub"},
      {46, Code::kUnavailable, "see with nvidia-smi who uses the GPU, and its compute mode"},
      {98, Code::kUnsupported, "build with FERRY_CUDA_ARCH for this GPU"},
      {209, Code::kUnsupported, "build with FERRY_CUDA_ARCH for this GPU"},
      {217, Code::kUnsupported, "copy between them instead; copies need no peer access"},
      {400, Code::kInvalidArgument, "check that stream and event live and are of the same device"},
      {600, Code::kUnavailable, "ask again later"},
      {719, Code::kDeviceLost, "the device is lost to this process; restart it to use the device"},
      {802, Code::kUnavailable, "see that nvidia-fabricmanager runs"},
      {901, Code::kInvalidArgument, "capture nothing but copies and kernels"},
  };
  for (const auto& [number, code, next_step] : kCases) {
    const Error error = CudaError(number, "name", "text", "call");
    EXPECT_EQ(error.code(), code) << number;
    EXPECT_EQ(error.message(), std::string("call: name (text); ") + next_step);
  }
}

TEST(CudaError, ADeviceThatThereIsNotIsNamedWithTheCount) {
  const Error error = NoSuchDevice(7, 2, "cudaMalloc");
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_EQ(error.message(),
            "cudaMalloc for device 7 of 2: cudaErrorInvalidDevice (invalid device ordinal); check "
            "the address, size, stream and device of the call");
}

TEST(CudaError, ALostDeviceIsNamedWithTheCall) {
  const Error error = LostDevice(1, "cudaStreamQuery");
  EXPECT_EQ(error.code(), Code::kDeviceLost);
  EXPECT_EQ(error.message(),
            "cudaStreamQuery: device 1 was lost by an earlier failure; restart the process to use "
            "it");
}

TEST(CudaError, AnAddressWithoutMemoryIsShown) {
  const Error error = NothingThere(PointerTo(0xabc0));
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_EQ(
      error.message(),
      "there is no memory at 0xabc0: it was freed, or never allocated; use memory that lives");
}

TEST(CudaError, KnowsWhereItWasMade) {
  const Error error = CudaError(Fault::kNoDevice, "call");
  EXPECT_NE(std::string(error.where().file).find("error_test.cc"), std::string::npos);
}

}  // namespace
}  // namespace ferry::cuda
