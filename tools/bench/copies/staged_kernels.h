// Kernels that copy by way of shared memory, in each of the forms that CUDA C++ has for that.
#pragma once
#include <cstdint>

#include "ferry/cuda/device_api.h"

namespace ferry::tools {

enum class StagedForm : std::uint8_t {
  kRegisters,       // loads and stores, no shared memory: the cost of staging is the difference
  kPtx,             // cuda::prim::RunPipeline: cp.async, its groups and barriers
  kThreadPipeline,  // cuda::memcpy_async of 16 bytes, and a cuda::pipeline of each thread
  kBlockPipeline,   // cuda::memcpy_async of a tile, and one cuda::pipeline of the thread block
};

inline constexpr std::uint64_t kStagedTile = 16 * 1024;  // bytes of a buffer
inline constexpr int kMaxStagedStages = 3;

// Copies whole tiles between buffers in GPU memory, which are aligned to 16 bytes and do not
// overlap. Errors: kInvalidArgument for stages other than 1 to kMaxStagedStages.
struct StagedArguments {
  StagedForm form = StagedForm::kPtx;
  int stages = 2;  // buffers of a thread block; ignored for kRegisters
  void* dst = nullptr;
  const void* src = nullptr;
  std::uint32_t tiles = 0;
  std::uint32_t groups = 1;  // thread blocks, which take tiles in turn
};
extern const cuda::Kernel kStagedKernel;

}  // namespace ferry::tools
