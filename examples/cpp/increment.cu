// The kernel of pipeline.cc, for GPUs.
#include <cuda_runtime.h>

#include "increment.h"

namespace {

__global__ void Increment(IncrementArguments job) {
  auto* const out = reinterpret_cast<unsigned char*>(job.out);
  const auto* const in = reinterpret_cast<const unsigned char*>(job.in);
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < job.bytes; i += step)
    out[i] = static_cast<unsigned char>(in[i] + 1);
}

}  // namespace

ferry::Status LaunchIncrement(ferry::cuda::StreamRef stream, const void* arguments) {
  const auto& job = *static_cast<const IncrementArguments*>(arguments);
  Increment<<<256, 256, 0, static_cast<cudaStream_t>(stream.native())>>>(job);
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return ferry::Ok();
  return ferry::Error(ferry::Code::kInternal, cudaGetErrorString(error));
}
