// Tests that the error table agrees with the CUDA runtime.
#include <cuda_runtime_api.h>
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <string>

#include "ferry/cuda/error.h"

namespace ferry::cuda {
namespace {

static_assert(static_cast<int>(Fault::kInvalidValue) == cudaErrorInvalidValue);
static_assert(static_cast<int>(Fault::kMemoryAllocation) == cudaErrorMemoryAllocation);
static_assert(static_cast<int>(Fault::kInsufficientDriver) == cudaErrorInsufficientDriver);
static_assert(static_cast<int>(Fault::kNoDevice) == cudaErrorNoDevice);
static_assert(static_cast<int>(Fault::kInvalidDevice) == cudaErrorInvalidDevice);
static_assert(static_cast<int>(Fault::kDeviceUninitialized) == cudaErrorDeviceUninitialized);
static_assert(static_cast<int>(Fault::kMapBufferObjectFailed) == cudaErrorMapBufferObjectFailed);
static_assert(static_cast<int>(Fault::kNoKernelImageForDevice) == cudaErrorNoKernelImageForDevice);
static_assert(static_cast<int>(Fault::kPeerAccessUnsupported) == cudaErrorPeerAccessUnsupported);
static_assert(static_cast<int>(Fault::kInvalidResourceHandle) == cudaErrorInvalidResourceHandle);
static_assert(static_cast<int>(Fault::kNotReady) == cudaErrorNotReady);
static_assert(static_cast<int>(Fault::kIllegalAddress) == cudaErrorIllegalAddress);
static_assert(static_cast<int>(Fault::kLaunchFailure) == cudaErrorLaunchFailure);
static_assert(static_cast<int>(Fault::kNotSupported) == cudaErrorNotSupported);
static_assert(static_cast<int>(Fault::kStreamCaptureUnsupported) ==
              cudaErrorStreamCaptureUnsupported);
static_assert(static_cast<int>(Fault::kStreamCaptureInvalidated) ==
              cudaErrorStreamCaptureInvalidated);

// The simulated device thus reports the same texts as a GPU.
TEST(CudaErrorNames, AreThoseOfTheRuntime) {
  for (const Fault fault :
       {Fault::kInvalidValue, Fault::kMemoryAllocation, Fault::kInsufficientDriver,
        Fault::kNoDevice, Fault::kInvalidDevice, Fault::kDeviceUninitialized,
        Fault::kMapBufferObjectFailed, Fault::kNoKernelImageForDevice,
        Fault::kPeerAccessUnsupported, Fault::kInvalidResourceHandle, Fault::kNotReady,
        Fault::kIllegalAddress, Fault::kPeerAccessAlreadyEnabled,
        Fault::kHostMemoryAlreadyRegistered, Fault::kLaunchFailure, Fault::kNotSupported,
        Fault::kStreamCaptureUnsupported, Fault::kStreamCaptureInvalidated}) {
    const auto error = static_cast<cudaError_t>(fault);
    const std::string expected =
        fmt::format("call: {} ({}); ", cudaGetErrorName(error), cudaGetErrorString(error));
    EXPECT_EQ(CudaError(fault, "call").message().substr(0, expected.size()), expected);
  }
}

// Sticky are the errors that the runtime's header describes as such, and hardware faults.
TEST(CudaErrorNames, StickyOnesAreKnown) {
  for (const cudaError_t error :
       {cudaErrorECCUncorrectable, cudaErrorNvlinkUncorrectable, cudaErrorContained,
        cudaErrorIllegalAddress, cudaErrorLaunchTimeout, cudaErrorAssert,
        cudaErrorHardwareStackError, cudaErrorIllegalInstruction, cudaErrorMisalignedAddress,
        cudaErrorInvalidAddressSpace, cudaErrorInvalidPc, cudaErrorLaunchFailure,
        cudaErrorTensorMemoryLeak, cudaErrorExternalDevice}) {
    EXPECT_TRUE(IsSticky(error)) << cudaGetErrorName(error);
  }
  for (const cudaError_t error : {cudaErrorMemoryAllocation, cudaErrorInvalidValue,
                                  cudaErrorNotReady, cudaErrorLaunchOutOfResources}) {
    EXPECT_FALSE(IsSticky(error)) << cudaGetErrorName(error);
  }
}

}  // namespace
}  // namespace ferry::cuda
