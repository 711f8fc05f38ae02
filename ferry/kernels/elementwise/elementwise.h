// Elementwise ops: bias with GELU, and multiply-add.
#pragma once
#include <cstdint>

#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/kernels/tensor.h"

namespace ferry::kernels {

// kExact: by erf, as torch's gelu is by default. kTanh: its approximation, up to 4.8e-4 away.
enum class GeluForm : std::uint8_t { kExact, kTanh };

// out[..., i] = gelu(x[..., i] + bias[i]), in fp32; rounded once. Gelu() and GeluTanh() of
// activation.h have the formulas.
//   x, out  [..., cols] fp32, fp16 or bf16, one to four sizes, any strides but 1 for the last size;
//           out may be x
//   bias    [cols] of the same type, contiguous
// Moves x and out once, 16 bytes at a time where bias and all rows of x and out begin at multiples
// of 16 bytes and cols is a multiple of as many elements, otherwise one element.
// Errors: kInvalidArgument for other shapes, types or strides, and for outputs over inputs in part;
// kUnsupported where the build has no CUDA; those of a launch.
struct AddGeluArgs {
  Tensor x;
  Tensor bias;
  Tensor out;
  GeluForm form = GeluForm::kExact;
};
Status FusedAddGelu(const AddGeluArgs& args, cuda::StreamRef stream);
Status FusedAddGeluCpu(const AddGeluArgs& args);
extern const cuda::Kernel kFusedAddGeluKernel;

// out = a * b + c, in fp32 without rounding in between; rounded once. Shapes, strides, types and
// errors as above, all four alike; out may be a, b or c. Where all are contiguous they are one
// row. 16 bytes at a time where all rows begin at multiples of 16 bytes and have a multiple of as
// many elements, otherwise one element.
struct MulAddArgs {
  Tensor a;
  Tensor b;
  Tensor c;
  Tensor out;
};
Status ElementWiseMulAdd(const MulAddArgs& args, cuda::StreamRef stream);
Status ElementWiseMulAddCpu(const MulAddArgs& args);
extern const cuda::Kernel kElementWiseMulAddKernel;

}  // namespace ferry::kernels
