// RMS norm of rows, with and without a residual sum.
#pragma once
#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/kernels/tensor.h"

namespace ferry::kernels {

// out[r, c] = T(T(x[r, c] * rsqrt(mean_c(x[r, c]^2) + eps)) * weight[c]), where T() rounds to the
// tensors' format (Zhang and Sennrich 2019, Root Mean Square Layer Normalization, eq. 4; rounded
// where Hugging Face's Qwen3RMSNorm does). Sums and products in fp32.
//   x, out  [..., cols] fp32, fp16 or bf16, one to four sizes, any strides but 1 for the last size,
//           such as a part of a projection's output; out may be x
//   weight  [cols], contiguous
// Moves x and out once, up to 16384 columns of bf16 and fp16 and 8192 of fp32; beyond that x comes
// a second time, from the L2 cache where it is still there. 16 bytes at a time where weight and all
// rows of all other tensors begin at multiples of 16 bytes and cols is a multiple of as many
// elements, otherwise one element. Errors: kInvalidArgument for other shapes, types or strides, for
// outputs over inputs in part, and for more than 2^31 - 1 rows; kUnsupported where the build has no
// CUDA; those of a launch.
struct RmsNormArgs {
  Tensor x;
  Tensor weight;
  Tensor out;
  float eps = 1e-6F;
};
Status RmsNorm(const RmsNormArgs& args, cuda::StreamRef stream);
Status RmsNormCpu(const RmsNormArgs& args);
extern const cuda::Kernel kRmsNormKernel;

// sum = x + residual in fp32; residual_out = T(sum); out is the above of the sum, which is not
// rounded for it. Shapes and the rest as above; residual and residual_out as x. residual_out may be
// residual or x, out may be x or residual, but not both the same.
struct AddRmsNormArgs {
  Tensor x;
  Tensor residual;
  Tensor weight;
  Tensor residual_out;
  Tensor out;
  float eps = 1e-6F;
};
Status AddRmsNorm(const AddRmsNormArgs& args, cuda::StreamRef stream);
Status AddRmsNormCpu(const AddRmsNormArgs& args);
extern const cuda::Kernel kAddRmsNormKernel;

}  // namespace ferry::kernels
