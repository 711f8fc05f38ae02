// Tests of the texts and codes of CUDA errors.
#include "ferry/cuda/error.h"

#include <gtest/gtest.h>

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
        Fault::kNotReady, Fault::kIllegalAddress, Fault::kPeerAccessAlreadyEnabled,
        Fault::kHostMemoryAlreadyRegistered, Fault::kLaunchFailure, Fault::kNotSupported}) {
    EXPECT_NE(CudaError(fault, "").code(), Code::kInternal) << static_cast<int>(fault);
  }
}

}  // namespace
}  // namespace ferry::cuda
