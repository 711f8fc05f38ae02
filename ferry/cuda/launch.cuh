// Kernel launches through cudaLaunchKernelEx, for .cu files.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

#include "ferry/core/result.h"
#include "ferry/cuda/resources.h"

// Launches of kernels, for .cu files.
namespace ferry::cuda {

// More dynamic shared memory than this must be asked for; Launch() does. A block has 48 KiB
// without, and what a kernel declares itself is of them.
inline constexpr std::size_t kUsualSharedBytes = 40 * 1024;

struct LaunchConfig {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;  // dynamic shared memory of a block
  // May begin before the kernel before it in the stream has ended, and waits itself, by
  // prim::WaitForGridsBefore() (cudaLaunchAttributeProgrammaticStreamSerialization). Means nothing
  // where the kernel's code is for less than compute capability 9: it would not wait.
  bool early = false;
};

// The error of a launch, given as its cudaError_t; clears what CUDA remembers of it.
Error LaunchError(int number, const char* name, StreamRef stream,
                  SourceLoc at = SourceLoc::Current());

// Whether the kernel's code for the stream's device was compiled for compute capability 9 or more,
// so that it can wait. Asked of CUDA once; false where CUDA has no answer. Any thread.
bool CanBeginEarly(const void* kernel, StreamRef stream);

// Of a kernel that was refused `dynamic` bytes of shared memory: kUnsupported if the stream's
// device has less for a thread block, else that of CUDA.
Error SharedMemoryError(int number, const void* kernel, std::size_t dynamic, const char* name,
                        StreamRef stream);

// Queues the kernel. `name` is for errors. The stream's device must be current: inside
// Kernel::launch it is, elsewhere a ScopedDevice sees to it. Errors: of the launch itself;
// kUnsupported where this build has no code for the device, or a thread block has not so much
// shared memory there. What goes wrong in the kernel shows in later calls.
template <class... Parameters, class... Arguments>
Status Launch(StreamRef stream, const char* name, const LaunchConfig& config,
              void (*kernel)(Parameters...), Arguments&&... arguments) {
  cudaLaunchConfig_t launch{};
  launch.gridDim = config.grid;
  launch.blockDim = config.block;
  launch.dynamicSmemBytes = config.shared_bytes;
  launch.stream = static_cast<cudaStream_t>(stream.native());
  cudaLaunchAttribute attribute{};
  const auto* const function = reinterpret_cast<const void*>(kernel);
  if (config.early && CanBeginEarly(function, stream)) {
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    launch.attrs = &attribute;
    launch.numAttrs = 1;
  }
  // No work on a stream, so a stream that is being captured does not mind.
  if (config.shared_bytes > kUsualSharedBytes) {
    const cudaError_t refused = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(config.shared_bytes));
    if (refused != cudaSuccess) {
      return SharedMemoryError(refused, function, config.shared_bytes, name, stream);
    }
  }
  const cudaError_t error =
      cudaLaunchKernelEx(&launch, kernel, std::forward<Arguments>(arguments)...);
  if (error != cudaSuccess) return LaunchError(error, name, stream);
  return Ok();
}

}  // namespace ferry::cuda
