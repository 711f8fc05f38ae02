// Helpers of all ops: the error of a build without CUDA and the mapping of emulated tensors.

#include "ferry/kernels/op.h"

#include <fmt/core.h>

#include "ferry/cuda/address.h"

namespace ferry::kernels {

Error NoDeviceCode(const char* op, SourceLoc at) {
  return {Code::kUnsupported,
          fmt::format("{}: this build has no code for GPUs; build with nvcc, or call the form for "
                      "the CPU",
                      op),
          at};
}

Status MapTensor(cuda::EmulatedMemory& memory, Tensor* tensor) {
  const std::int64_t bytes = tensor->SpanBytes();
  // Nothing is accessed through an empty tensor, whose address may be anything.
  if (bytes <= 0) return Ok();
  FERRY_TRY_ASSIGN(tensor->data,
                   memory.At(cuda::AddressOf(tensor->data), static_cast<std::uint64_t>(bytes)));
  return Ok();
}

}  // namespace ferry::kernels
