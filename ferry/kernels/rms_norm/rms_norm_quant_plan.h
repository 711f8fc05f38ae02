// Launch plan of the quantised RMS norm: computed on the host, passed to the kernel by value.
#pragma once
#include "ferry/core/result.h"
#include "ferry/kernels/rms_norm/rms_norm_plan.h"
#include "ferry/kernels/rms_norm/rms_norm_quant.h"

namespace ferry::kernels {

// The rows are those of `norm`, whose own output is not used. Elements that are not in words of 16
// bytes always take the form kTwoPass.
struct RmsNormQuantPlan {
  RmsNormPlan norm;
  void* out = nullptr;  // e4m3
  RowStrides out_strides;
  QuantScale scale;
};

// Errors: as RmsNormQuant().
Result<RmsNormQuantPlan> PlanRmsNormQuant(const RmsNormQuantArgs& args);

}  // namespace ferry::kernels
