#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include "ferry/cuda/error.h"
#include "ferry/cuda/resources.h"

// Declared in ferry/cuda/launch.cuh, which only nvcc can read.
namespace ferry::cuda {

Error LaunchError(int number, const char* name, StreamRef stream, SourceLoc at);

Error LaunchError(int number, const char* name, StreamRef stream, SourceLoc at) {
  (void)cudaGetLastError();
  const auto error = static_cast<cudaError_t>(number);
  return CudaError(number, cudaGetErrorName(error), cudaGetErrorString(error),
                   fmt::format("launching {} on device {}", name, stream.ordinal()), at);
}

}  // namespace ferry::cuda
