// The table of CUDA errors: code, stickiness and the fix.
#include "ferry/cuda/error.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>

#include "ferry/cuda/device_code.h"

namespace ferry::cuda {
namespace {

constexpr const char* kFixTheCall = "check the address, size, stream and device of the call";
constexpr const char* kRestart = "the device is lost to this process; restart it to use the device";
constexpr const char* kCheckDriver = "compare with what nvidia-smi shows of driver and GPUs";

struct Row {
  int number;
  Code code;
  bool sticky;
  const char* name;
  const char* text;
  const char* next_step;
};

// Sorted by number; names and texts of cudaGetErrorName() and cudaGetErrorString() of CUDA 13.0.
// Sticky are the errors for which driver_types.h says that any further work returns the same error,
// and hardware faults.
constexpr Row kRows[] = {
    {1, Code::kInvalidArgument, false, "cudaErrorInvalidValue", "invalid argument", kFixTheCall},
    {2, Code::kUnavailable, false, "cudaErrorMemoryAllocation", "out of memory",
     "free memory, or ask for less"},
    {9, Code::kInvalidArgument, false, "cudaErrorInvalidConfiguration",
     "invalid configuration argument", "check the launch's grid and shared memory"},
    {16, Code::kInvalidArgument, false, "cudaErrorInvalidHostPointer", "invalid host pointer",
     kFixTheCall},
    {17, Code::kInvalidArgument, false, "cudaErrorInvalidDevicePointer", "invalid device pointer",
     kFixTheCall},
    {34, Code::kUnsupported, false, "cudaErrorStubLibrary", "CUDA driver is a stub library",
     "put the driver's own libcuda.so.1 before the toolkit's stub"},
    {35, Code::kUnsupported, false, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version",
     "install an NVIDIA driver, or a newer one, and see that libcuda.so.1 is found"},
    {36, Code::kUnsupported, false, "cudaErrorCallRequiresNewerDriver",
     "API call is not supported in the installed CUDA driver", "install a newer NVIDIA driver"},
    {46, Code::kUnavailable, false, "cudaErrorDevicesUnavailable",
     "CUDA-capable device(s) is/are busy or unavailable",
     "see with nvidia-smi who uses the GPU, and its compute mode"},
    {98, Code::kUnsupported, false, "cudaErrorInvalidDeviceFunction", "invalid device function",
     kBuildForThisGpu},
    {100, Code::kUnsupported, false, "cudaErrorNoDevice", "no CUDA-capable device is detected",
     "see with nvidia-smi whether there is a GPU, and check CUDA_VISIBLE_DEVICES"},
    {101, Code::kInvalidArgument, false, "cudaErrorInvalidDevice", "invalid device ordinal",
     kFixTheCall},
    {200, Code::kUnsupported, false, "cudaErrorInvalidKernelImage",
     "device kernel image is invalid", kBuildForThisGpu},
    {201, Code::kInvalidArgument, false, "cudaErrorDeviceUninitialized", "invalid device context",
     "an allocation can be imported in other processes only, on a device that works"},
    {205, Code::kUnavailable, false, "cudaErrorMapBufferObjectFailed",
     "mapping of buffer object failed", "free what was imported and is not needed any more"},
    {209, Code::kUnsupported, false, "cudaErrorNoKernelImageForDevice",
     "no kernel image is available for execution on the device", kBuildForThisGpu},
    {214, Code::kDeviceLost, true, "cudaErrorECCUncorrectable",
     "uncorrectable ECC error encountered", kRestart},
    {217, Code::kUnsupported, false, "cudaErrorPeerAccessUnsupported",
     "peer access is not supported between these two devices",
     "copy between them instead; copies need no peer access"},
    {218, Code::kUnsupported, false, "cudaErrorInvalidPtx", "a PTX JIT compilation failed",
     kBuildForThisGpu},
    {220, Code::kDeviceLost, true, "cudaErrorNvlinkUncorrectable",
     "uncorrectable NVLink error detected during the execution", kRestart},
    {221, Code::kUnsupported, false, "cudaErrorJitCompilerNotFound",
     "PTX JIT compiler library not found", kBuildForThisGpu},
    {222, Code::kUnsupported, false, "cudaErrorUnsupportedPtxVersion",
     "the provided PTX was compiled with an unsupported toolchain.", kBuildForThisGpu},
    {223, Code::kUnsupported, false, "cudaErrorJitCompilationDisabled",
     "PTX JIT compilation was disabled", kBuildForThisGpu},
    {226, Code::kDeviceLost, true, "cudaErrorContained",
     "Invalid access of peer GPU memory over nvlink or a hardware error", kRestart},
    {304, Code::kInternal, false, "cudaErrorOperatingSystem",
     "OS call failed or operation not supported on this OS", "see the kernel log (dmesg)"},
    {400, Code::kInvalidArgument, false, "cudaErrorInvalidResourceHandle",
     "invalid resource handle", "check that stream and event live and are of the same device"},
    {401, Code::kInvalidArgument, false, "cudaErrorIllegalState",
     "the operation cannot be performed in the present state",
     "see whether the stream is being captured"},
    {600, Code::kUnavailable, false, "cudaErrorNotReady", "device not ready", "ask again later"},
    {700, Code::kDeviceLost, true, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered", kRestart},
    {702, Code::kDeviceLost, true, "cudaErrorLaunchTimeout",
     "the launch timed out and was terminated", kRestart},
    {704, Code::kInvalidArgument, false, "cudaErrorPeerAccessAlreadyEnabled",
     "peer access is already enabled", "nothing is left to do"},
    {709, Code::kDeviceLost, true, "cudaErrorContextIsDestroyed", "context is destroyed", kRestart},
    {710, Code::kDeviceLost, true, "cudaErrorAssert", "device-side assert triggered", kRestart},
    {711, Code::kUnavailable, false, "cudaErrorTooManyPeers", "peer mapping resources exhausted",
     "copy between them instead; copies need no peer access"},
    {712, Code::kInvalidArgument, false, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped",
     "register it once, or use it as the pinned memory that it is"},
    {713, Code::kInvalidArgument, false, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region", kFixTheCall},
    {714, Code::kDeviceLost, true, "cudaErrorHardwareStackError", "hardware stack error", kRestart},
    {715, Code::kDeviceLost, true, "cudaErrorIllegalInstruction",
     "an illegal instruction was encountered", kRestart},
    {716, Code::kDeviceLost, true, "cudaErrorMisalignedAddress", "misaligned address", kRestart},
    {717, Code::kDeviceLost, true, "cudaErrorInvalidAddressSpace",
     "operation not supported on global/shared address space", kRestart},
    {718, Code::kDeviceLost, true, "cudaErrorInvalidPc", "invalid program counter", kRestart},
    {719, Code::kDeviceLost, true, "cudaErrorLaunchFailure", "unspecified launch failure",
     kRestart},
    {721, Code::kDeviceLost, true, "cudaErrorTensorMemoryLeak",
     "tensor memory not completely freed", kRestart},
    {800, Code::kUnsupported, false, "cudaErrorNotPermitted", "operation not permitted",
     "see what the container or the stream's capture forbids"},
    {801, Code::kUnsupported, false, "cudaErrorNotSupported", "operation not supported",
     "use another way; this device or memory cannot do it"},
    {802, Code::kUnavailable, false, "cudaErrorSystemNotReady", "system not yet initialized",
     "see that nvidia-fabricmanager runs"},
    {803, Code::kUnsupported, false, "cudaErrorSystemDriverMismatch",
     "system has unsupported display driver / cuda driver combination",
     "see that libcuda.so.1 is of the same version as the kernel module"},
    {900, Code::kInvalidArgument, false, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing", "end the capture before"},
    {901, Code::kInvalidArgument, false, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture",
     "capture nothing but copies and kernels"},
    {911, Code::kDeviceLost, true, "cudaErrorExternalDevice",
     "an async error has occured in external entity outside of CUDA", kRestart},
};

const Row* Find(int number) noexcept {
  const auto* row = std::find_if(std::begin(kRows), std::end(kRows),
                                 [number](const Row& r) { return r.number == number; });
  return row == std::end(kRows) ? nullptr : row;
}

}  // namespace

// Unknown errors are not sticky: taking a device for lost is final, so it needs to be certain.
bool IsSticky(int number) noexcept {
  const Row* const row = Find(number);
  return row != nullptr && row->sticky;
}

Error CudaError(int number, std::string_view name, std::string_view text, std::string_view tried,
                SourceLoc at) {
  const Row* const row = Find(number);
  // An error that is missing in the table is usually the driver's; its own name and text are given.
  return Error(row != nullptr ? row->code : Code::kInternal,
               fmt::format("{}: {} ({}); {}", tried, name, text,
                           row != nullptr ? row->next_step : kCheckDriver),
               at);
}

Error CudaError(Fault fault, std::string_view tried, SourceLoc at) {
  const int number = static_cast<int>(fault);
  const Row* const row = Find(number);
  return row == nullptr ? CudaError(number, "cudaErrorUnknown", "unknown error", tried, at)
                        : CudaError(number, row->name, row->text, tried, at);
}

Error LostDevice(int ordinal, std::string_view tried, SourceLoc at) {
  return Error(Code::kDeviceLost,
               fmt::format("{}: device {} was lost by an earlier failure; {}", tried, ordinal,
                           "restart the process to use it"),
               at);
}

Error NoSuchDevice(int ordinal, int count, std::string_view tried, SourceLoc at) {
  return CudaError(Fault::kInvalidDevice,
                   fmt::format("{} for device {} of {}", tried, ordinal, count), at);
}

Error NotEnoughSharedMemory(std::string_view kernel, std::size_t needed, std::size_t there,
                            int ordinal, SourceLoc at) {
  return Error(Code::kUnsupported,
               fmt::format("{} needs {} bytes of shared memory for a thread block, and device {} "
                           "has {}; use fewer stages, or a GPU with more",
                           kernel, needed, ordinal, there),
               at);
}

Error NothingThere(const void* address, SourceLoc at) {
  return Error(Code::kInvalidArgument,
               fmt::format("there is no memory at {}: it was freed, or never allocated; use memory "
                           "that lives",
                           address),
               at);
}

}  // namespace ferry::cuda
