// Launch plan of RMS norm: computed on the host, passed to the kernel by value.
#pragma once
#include <cstdint>

#include "ferry/core/result.h"
#include "ferry/cuda/resources.h"
#include "ferry/kernels/argument.h"
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

// The steps that all ops share: checks of the arguments, whose errors are kInvalidArgument, ...
Status CheckNormInput(const Argument& x);
Status CheckNormWeight(const Argument& weight, const Argument& x);
Status CheckLikeNormInput(const Argument& other, const Argument& x);
Status CheckNormEps(const char* op, float eps);
// ... the plan of a call with at least one element, whose first joined tensor is x, and, once its
// tensors are known, the form and the grid; `aligned`: rows other than the weight allow words.
RmsNormPlan BeginNormPlan(const Tensor& x, const Tensor& weight, const JoinedRows& joined,
                          float eps);
void FinishNormPlan(const Tensor& weight, bool aligned, RmsNormPlan* plan);

// Checks the arguments and computes the plan. Errors: as the ops.
Result<RmsNormPlan> PlanRmsNorm(const RmsNormArgs& args);
Result<RmsNormPlan> PlanAddRmsNorm(const AddRmsNormArgs& args);

}  // namespace ferry::kernels
