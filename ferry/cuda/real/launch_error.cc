// Errors of kernel launches, and what is known of kernels before them.
#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <mutex>
#include <utility>

#include "ferry/cuda/error.h"
#include "ferry/cuda/resources.h"

// Declared in ferry/cuda/launch.cuh, which only nvcc can compile.
namespace ferry::cuda {

Error LaunchError(int number, const char* name, StreamRef stream, SourceLoc at);
int SetSharedMemoryLimit(const void* kernel, std::size_t bytes);
Status AllowSharedMemory(const void* kernel, std::size_t dynamic, const char* name,
                         StreamRef stream, int (*set)(const void*, std::size_t));
bool CanBeginEarly(const void* kernel, StreamRef stream);

Error LaunchError(int number, const char* name, StreamRef stream, SourceLoc at) {
  (void)cudaGetLastError();
  const auto error = static_cast<cudaError_t>(number);
  return CudaError(number, cudaGetErrorName(error), cudaGetErrorString(error),
                   fmt::format("launching {} on device {}", name, stream.ordinal()), at);
}

static Error SharedMemoryError(int number, const void* kernel, std::size_t dynamic,
                               const char* name, StreamRef stream) {
  const SourceLoc at = SourceLoc::Current();
  cudaFuncAttributes attributes{};
  int there = 0;
  if (cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess &&
      cudaDeviceGetAttribute(&there, cudaDevAttrMaxSharedMemoryPerBlockOptin, stream.ordinal()) ==
          cudaSuccess) {
    const std::size_t needed = dynamic + attributes.sharedSizeBytes;
    if (there > 0 && needed > static_cast<std::size_t>(there)) {
      (void)cudaGetLastError();
      return NotEnoughSharedMemory(name, needed, static_cast<std::size_t>(there), stream.ordinal(),
                                   at);
    }
  }
  return LaunchError(number, name, stream, at);
}

int SetSharedMemoryLimit(const void* kernel, std::size_t bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(bytes));
}

Status AllowSharedMemory(const void* kernel, std::size_t dynamic, const char* name,
                         StreamRef stream, int (*set)(const void*, std::size_t)) {
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, std::size_t> allowed;
  const std::lock_guard lock(mutex);
  std::size_t& most = allowed[{kernel, stream.ordinal()}];
  const std::size_t limit = std::max(most, dynamic);
  // Each time, since a device may have several contexts, each with a limit of its own.
  if (const int refused = set(kernel, limit); refused != cudaSuccess) {
    return SharedMemoryError(refused, kernel, dynamic, name, stream);
  }
  most = limit;
  return Ok();
}

bool CanBeginEarly(const void* kernel, StreamRef stream) {
  constexpr int kFirstVersion = 90;
  // Cached, since launches are frequent.
  // Queried for each device: one may have compiled code that another lacks.
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, bool> known;
  const std::pair key(kernel, stream.ordinal());
  const std::lock_guard lock(mutex);
  if (const auto found = known.find(key); found != known.end()) return found->second;
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, kernel) != cudaSuccess) {
    // The launch reports the error.
    (void)cudaGetLastError();
    return false;
  }
  return known[key] = attributes.ptxVersion >= kFirstVersion;
}

}  // namespace ferry::cuda
