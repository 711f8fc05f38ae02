// Launch plan of RMS norm: computed on the host, passed to the kernel by value.
#pragma once
#include <cstdint>

#include "ferry/core/result.h"
#include "ferry/cuda/resources.h"
#include "ferry/kernels/rms_norm/rms_norm.h"
#include "ferry/kernels/rows.h"

namespace ferry::kernels {

// How a row is processed: held in registers, with this many words or elements per thread, or read
// twice.
enum class RmsNormForm : std::uint8_t { kOneWord, kTwoWords, kFourWords, kEightElements, kTwoPass };

struct RmsNormPlan {
  const void* x = nullptr;
  const void* residual = nullptr;  // null: none
  const void* weight = nullptr;
  void* residual_out = nullptr;
  void* out = nullptr;
  RowStrides x_strides;
  RowStrides residual_strides;
  RowStrides residual_out_strides;
  RowStrides out_strides;
  RowSizes sizes;
  std::uint32_t rows = 0;
  std::uint32_t words = 0;  // of a row: accesses
  float eps = 0;
  float per_column = 0;  // 1 / cols
  DType dtype = DType::kFloat32;
  RmsNormForm form = RmsNormForm::kTwoPass;
  bool wide = false;                  // words of 16 bytes, otherwise elements
  std::uint32_t threads_per_row = 0;  // a power of two up to 32, or a multiple of it
  std::uint32_t rows_per_block = 0;   // 1, or as many as make whole warps
  std::uint32_t blocks = 0;           // 0: nothing to launch
};
inline constexpr std::uint32_t kRmsNormMaxThreads = 512;

// Checks the arguments and computes the plan. Errors: as the ops.
Result<RmsNormPlan> PlanRmsNorm(const RmsNormArgs& args);
Result<RmsNormPlan> PlanAddRmsNorm(const AddRmsNormArgs& args);

}  // namespace ferry::kernels
