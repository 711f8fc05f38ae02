// CUDA errors as ferry errors; needs no CUDA header.
#pragma once
#include <cstddef>
#include <string_view>

#include "ferry/core/result.h"

// CUDA errors as ferry errors, for both implementations.
namespace ferry::cuda {

// The cudaError_t values that this program distinguishes.
enum class Fault : int {
  kInvalidValue = 1,
  kMemoryAllocation = 2,
  kInsufficientDriver = 35,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kDeviceUninitialized = 201,
  kMapBufferObjectFailed = 205,
  kNoKernelImageForDevice = 209,
  kPeerAccessUnsupported = 217,
  kInvalidResourceHandle = 400,
  kNotReady = 600,
  kIllegalAddress = 700,
  kPeerAccessAlreadyEnabled = 704,
  kHostMemoryAlreadyRegistered = 712,
  kLaunchFailure = 719,
  kNotSupported = 801,
  kStreamCaptureUnsupported = 900,
  kStreamCaptureInvalidated = 901,
};

// Whether every later call for the device fails too, until the process ends.
bool IsSticky(int number) noexcept;

// "<tried>: <name> (<text>); <fix>", with the code that fits the number. `tried` names the call and
// its values; name and text are CUDA's.
Error CudaError(int number, std::string_view name, std::string_view text, std::string_view tried,
                SourceLoc at = SourceLoc::Current());
// The same with CUDA's name and text for the fault.
Error CudaError(Fault fault, std::string_view tried, SourceLoc at = SourceLoc::Current());

// The error of a call for a device that was lost before.
Error LostDevice(int ordinal, std::string_view tried, SourceLoc at = SourceLoc::Current());
// The error for an ordinal that does not exist among `count` devices.
Error NoSuchDevice(int ordinal, int count, std::string_view tried,
                   SourceLoc at = SourceLoc::Current());

// The error for a kernel whose thread blocks need more shared memory than the device offers.
Error NotEnoughSharedMemory(std::string_view kernel, std::size_t needed, std::size_t there,
                            int ordinal, SourceLoc at = SourceLoc::Current());

// The error for an address without memory.
Error NothingThere(const void* address, SourceLoc at = SourceLoc::Current());

}  // namespace ferry::cuda
