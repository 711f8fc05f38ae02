// A small kernel for the conformance suite.
#pragma once
#include <cstdint>

#include "ferry/cuda/device_api.h"

namespace ferry::cuda {

// For i < count: dst[i] = src[i] + add, on 32-bit words, modulo 2^32. Addresses are those that
// kernels use; dst may equal src.
struct AddArguments {
  std::uint64_t dst = 0;
  std::uint64_t src = 0;
  std::uint64_t count = 0;
  std::uint32_t add = 0;
};
extern const Kernel kAddWords;

// In builds with CUDA only.
Status LaunchAddWords(StreamRef stream, const void* arguments);

}  // namespace ferry::cuda
