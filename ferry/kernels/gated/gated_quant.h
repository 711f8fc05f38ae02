// silu_and_mul quantised to e4m3.
#pragma once
#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/kernels/quant.h"
#include "ferry/kernels/tensor.h"

namespace ferry::kernels {

// result = E4M3(y / scale), saturating, where y is what GatedMul() with Gate::kSilu writes, rounded
// as there.
//   input     [..., 2 I] as in GatedArgs
//   result    e4m3 [..., I], any strides but 1 for the last size; shares no memory with the others
//   scale     fp32, contiguous: read, one element, with kStatic; written, one element for each row,
//             max |y| / 448 and at least kMinQuantScale, with kPerToken (see quant.h)
//   scale_ub  fp32, one element, or left out: a bound of max |y|, only with kPerToken
// Moves input once with kStatic. With kPerToken once, up to 16384 columns of result for bf16 and
// fp16 and 8192 for fp32, where rows consist of whole words of 16 bytes: those of input begin at
// multiples of 16 bytes, those of result at multiples of the elements of a word, and I is a
// multiple of them. Otherwise twice with kPerToken. Errors: as GatedMul(), and kInvalidArgument for
// other scales.
struct SiluAndMulQuantArgs {
  Tensor input;
  Tensor result;
  Tensor scale;
  Tensor scale_ub;
  QuantMode mode = QuantMode::kStatic;
};
Status SiluAndMulQuant(const SiluAndMulQuantArgs& args, cuda::StreamRef stream);
Status SiluAndMulQuantCpu(const SiluAndMulQuantArgs& args);
extern const cuda::Kernel kSiluAndMulQuantKernel;

}  // namespace ferry::kernels
