// Gated activations: one half of each row, activated, times the other half.
#pragma once
#include <cstdint>
#include <string_view>

#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/kernels/tensor.h"

namespace ferry::kernels {

enum class Gate : std::uint8_t { kSilu, kGelu, kGeluTanh };
// The name of the op with this gate, for example "silu_and_mul"; null for an unknown gate.
const char* NameOf(Gate gate) noexcept;
// The gate of the op with this name. Errors: kInvalidArgument for an unknown name.
Result<Gate> GateNamed(std::string_view op);

// out[..., i] = gate(x[..., i]) * x[..., I + i] (Shazeer 2020, GLU Variants Improve Transformer),
// with the activations of activation.h, in fp32; rounded once.
//   x    [..., 2 I] fp32, fp16 or bf16, one to four sizes, any strides but 1 for the last size
//   out  [..., I] of the same type; may be the first half of x itself
// Moves 3 I elements a row, 16 bytes at a time where all rows and their halves begin at multiples
// of 16 bytes, otherwise one element. Errors: kInvalidArgument for other shapes, types, strides or
// gates, and for outputs over inputs in part; kUnsupported where the build has no CUDA; those of a
// launch.
struct GatedArgs {
  Tensor x;
  Tensor out;
  Gate gate = Gate::kSilu;
};
Status GatedMul(const GatedArgs& args, cuda::StreamRef stream);
Status GatedMulCpu(const GatedArgs& args);
extern const cuda::Kernel kGatedMulKernel;

}  // namespace ferry::kernels
