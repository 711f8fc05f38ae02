// The GPU form of the conformance suite's kernel.
#include "ferry/cuda/launch.cuh"
#include "ferry/cuda/testing/test_kernels.h"

namespace ferry::cuda {
namespace {

__global__ void AddWords(const __grid_constant__ AddArguments a) {
  auto* const dst = reinterpret_cast<std::uint32_t*>(a.dst);
  const auto* const src = reinterpret_cast<const std::uint32_t*>(a.src);
  const std::uint64_t stride = static_cast<std::uint64_t>(gridDim.x) * blockDim.x;
  for (std::uint64_t i = static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < a.count; i += stride) {
    dst[i] = src[i] + a.add;
  }
}

}  // namespace

Status LaunchAddWords(StreamRef stream, const void* arguments) {
  return Launch(stream, "add_words", {.grid = dim3(8), .block = dim3(128)}, AddWords,
                *static_cast<const AddArguments*>(arguments));
}

}  // namespace ferry::cuda
