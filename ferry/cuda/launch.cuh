// Kernel launches through cudaLaunchKernelEx, for .cu files.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

#include "ferry/core/result.h"
#include "ferry/cuda/resources.h"

// Kernel launches that return a Status, for .cu files.
namespace ferry::cuda {

// Dynamic shared memory above this size must be requested explicitly; Launch() does so. Without a
// request a block has 48 KiB, including the kernel's static shared memory.
inline constexpr std::size_t kUsualSharedBytes = 40 * 1024;

struct LaunchConfig {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;  // dynamic shared memory of a block
  // The kernel may start before the previous kernel of the stream has ended, and waits for it
  // itself (griddepcontrol.wait; cudaLaunchAttributeProgrammaticStreamSerialization). Ignored where
  // the kernel's code is for less than compute capability 9, which would not wait.
  bool early = false;
  // Consecutive blocks that form a cluster, 1 to 8, and divide the grid (cuda/prim/cluster.cuh;
  // cudaLaunchAttributeClusterDimension). Above 1 only for code for compute capability 9 or more.
  unsigned cluster = 1;
};

// The error of a launch from its cudaError_t; clears CUDA's last error.
Error LaunchError(int number, const char* name, StreamRef stream,
                  SourceLoc at = SourceLoc::Current());

// Whether the kernel's code for the stream's device was compiled for compute capability 9 or more,
// so that it can wait. Cached; false where CUDA does not answer. Any thread.
bool CanBeginEarly(const void* kernel, StreamRef stream);

// Lets thread blocks of the kernel have `dynamic` bytes of shared memory on the stream's device,
// which is current, and no fewer than earlier calls for it have asked for: the kernel has one
// limit, and another thread may be between its call and its launch. `set` tells CUDA the limit, and
// returns its error. Any thread. Errors: kUnsupported if the device has less for a thread block,
// else CUDA's.
int SetSharedMemoryLimit(const void* kernel, std::size_t bytes);
Status AllowSharedMemory(const void* kernel, std::size_t dynamic, const char* name,
                         StreamRef stream,
                         int (*set)(const void*, std::size_t) = SetSharedMemoryLimit);

// Queues the kernel. `name` is for errors. The stream's device must be current: it is inside
// Kernel::launch; elsewhere use a ScopedDevice. Errors: those of the launch itself; kUnsupported
// where this build has no code for the device, or a thread block cannot get that much shared
// memory. Failures inside the kernel are reported by later calls.
template <class... Parameters, class... Arguments>
Status Launch(StreamRef stream, const char* name, const LaunchConfig& config,
              void (*kernel)(Parameters...), Arguments&&... arguments) {
  cudaLaunchConfig_t launch{};
  launch.gridDim = config.grid;
  launch.blockDim = config.block;
  launch.dynamicSmemBytes = config.shared_bytes;
  launch.stream = static_cast<cudaStream_t>(stream.native());
  cudaLaunchAttribute attributes[2] = {};
  launch.attrs = attributes;
  const auto* const function = reinterpret_cast<const void*>(kernel);
  if (config.early && CanBeginEarly(function, stream)) {
    cudaLaunchAttribute& early = attributes[launch.numAttrs++];
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
  }
  if (config.cluster > 1) {
    cudaLaunchAttribute& cluster = attributes[launch.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = config.cluster;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  }
  // Does no work on a stream, so it is allowed during a capture.
  if (config.shared_bytes > kUsualSharedBytes) {
    const Status allowed = AllowSharedMemory(function, config.shared_bytes, name, stream);
    if (!allowed) return allowed;
  }
  const cudaError_t error =
      cudaLaunchKernelEx(&launch, kernel, std::forward<Arguments>(arguments)...);
  if (error != cudaSuccess) return LaunchError(error, name, stream);
  return Ok();
}

}  // namespace ferry::cuda
