// Rotary position embedding of queries and keys.
#pragma once
#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/kernels/tensor.h"

namespace ferry::kernels {

// Rotary position embedding (Su et al. 2021, RoFormer, eq. 34) of the halves' form that GPT-NeoX
// and Llama have: of the first R elements of each head, with p = positions[t], i < R / 2,
//   out[t, h, i]         = x[t, h, i] * cos(p, i) - x[t, h, R / 2 + i] * sin(p, i)
//   out[t, h, R / 2 + i] = x[t, h, R / 2 + i] * cos(p, i) + x[t, h, i] * sin(p, i)
// and the rest as it is. Without is_neox the pairs are neighbours, 2 i and 2 i + 1, in place of i
// and R / 2 + i, as in GPT-J and in the paper. In fp32; rounded once.
//   q, k           [T, heads, head_dim] fp32, fp16 or bf16, any strides but 1 for the last size; k
//                  may be left out
//   q_out, k_out   same shapes; may be q and k themselves
//   positions      int32 or int64 [T], contiguous
//   cos_sin_cache  fp32, fp16 or bf16 [positions, R], the rows' strides free: R / 2 cosines, then
//                  the sines; R is even, from 2 to head_dim
// If a position is not in the cache, the CPU form does nothing and returns kInvalidArgument; on
// GPUs that token's heads are not written, and device code built for a debugger traps. Other
// errors: kInvalidArgument for other shapes, types or strides, and for outputs over inputs in part;
// kUnsupported where the build has no CUDA; those of a launch.
struct RopeArgs {
  Tensor q;
  Tensor k;
  Tensor q_out;
  Tensor k_out;
  Tensor positions;
  Tensor cos_sin_cache;
  bool is_neox = true;
};
Status Rope(const RopeArgs& args, cuda::StreamRef stream);
Status RopeCpu(const RopeArgs& args);
extern const cuda::Kernel kRopeKernel;

}  // namespace ferry::kernels
