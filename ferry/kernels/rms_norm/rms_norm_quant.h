// RMS norm of rows, with and without a residual sum, quantised to e4m3.
#pragma once
#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/kernels/quant.h"
#include "ferry/kernels/tensor.h"

namespace ferry::kernels {

// result = E4M3(y / scale), saturating, where y is what RmsNorm() writes, rounded as there, or,
// with a residual, what AddRmsNorm() writes to `out`; residual becomes the rounded sum.
//   input, residual  as x in RmsNormArgs; residual may be left out
//   weight       [cols], contiguous, of the type of input
//   result       e4m3 of the shape of input, any strides but 1 for the last size; shares no memory
//                with the others
//   scale        fp32, contiguous: read, one element, with kStatic; written, one element for each
//                row, max |y| / 448 and at least kMinQuantScale, with kPerToken (see quant.h)
//   scale_ub     fp32, one element, or left out: a bound of max |y|, only with kPerToken
// Moves input once, up to 16384 columns of bf16 and fp16 and 8192 of fp32, where rows consist of
// whole words of 16 bytes: input, residual and weight begin at multiples of 16 bytes, and so do
// their rows; those of result begin at multiples of the elements of a word, and cols is a multiple
// of them. Otherwise input is read twice, and three times with kPerToken. Errors: kInvalidArgument
// for other shapes, types or strides, for overlapping memory, and for more than 2^31 - 1 rows;
// kUnsupported where the build has no CUDA; those of a launch.
struct RmsNormQuantArgs {
  Tensor input;
  Tensor residual;
  Tensor weight;
  Tensor result;
  Tensor scale;
  Tensor scale_ub;
  float eps = 1e-6F;
  QuantMode mode = QuantMode::kStatic;
};
Status RmsNormQuant(const RmsNormQuantArgs& args, cuda::StreamRef stream);
Status RmsNormQuantCpu(const RmsNormQuantArgs& args);
extern const cuda::Kernel kRmsNormQuantKernel;

}  // namespace ferry::kernels
