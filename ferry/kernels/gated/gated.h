// Gated activations: silu_and_mul, gelu_and_mul, gelu_tanh_and_mul.
#pragma once
#include <cstdint>

#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/kernels/tensor.h"

namespace ferry::kernels {

// By their names elsewhere: silu_and_mul, gelu_and_mul, gelu_tanh_and_mul.
enum class Gate : std::uint8_t { kSilu, kGelu, kGeluTanh };
const char* NameOf(Gate gate) noexcept;

// out[..., i] = gate(x[..., i]) * x[..., I + i] (Shazeer 2020, GLU Variants Improve Transformer),
// with the activations of activation.h, in fp32; rounded once.
//   x    [..., 2 I] fp32, fp16 or bf16, one to four sizes, any strides but 1 for the last size
//   out  [..., I] of the same type; may be the first half of x itself
// Moves 3 I elements a row, 16 bytes at a time where all rows and their halves begin at multiples
// of 16 bytes, otherwise one element. Errors: kInvalidArgument for other shapes, types or strides,
// and for outputs over inputs in part; kUnsupported where the build has no CUDA; those of a launch.
struct GatedArgs {
  Tensor x;
  Tensor out;
  Gate gate = Gate::kSilu;
};
Status GatedMul(const GatedArgs& args, cuda::StreamRef stream);
Status GatedMulCpu(const GatedArgs& args);
extern const cuda::Kernel kGatedMulKernel;

}  // namespace ferry::kernels
