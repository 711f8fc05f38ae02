// The kernel of pipeline.cc: adds one to each byte.
#pragma once
#include <cstddef>
#include <cstdint>

#include "ferry/core/result.h"
#include "ferry/cuda/resources.h"

struct IncrementArguments {
  std::uint64_t out = 0;  // addresses in GPU memory
  std::uint64_t in = 0;
  std::size_t bytes = 0;
};

// Queues the kernel on the stream, whose device is current. In increment.cu, for builds with nvcc.
ferry::Status LaunchIncrement(ferry::cuda::StreamRef stream, const void* arguments);
