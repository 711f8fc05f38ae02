// Merges attention over two sets of keys into attention over both.
#pragma once
#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/kernels/tensor.h"

namespace ferry::kernels {

// With w = exp(lse - max(lse_a, lse_b)) of either part, in fp32,
//   out = (w_a * out_a + w_b * out_b) / (w_a + w_b),  lse = max + log(w_a + w_b)
// as FlashAttention-2 merges its parts (Dao 2023, section 3.1): the results of attention over the
// keys of both, where out_* and lse_* are those over the keys of each. A part whose lse is infinite
// has no keys and counts for nothing, whatever its out holds: some FlashAttention releases write
// inf for empty sequences, others -inf. If both have none, out is zeros and lse is -inf. A sink
// must have been in one of the parts only.
//   out_a, out_b, out    [queries, heads, head_size] fp32, fp16 or bf16, any strides but 1 for the
//                        last size; out may be out_a or out_b
//   lse_a, lse_b         fp32 [queries, heads], any strides
//   lse                  the same, sharing no memory with the others, or none
// Moves three tensors once, 16 bytes at a time where all rows begin at multiples of 16 bytes and
// head_size is a multiple of as many elements, otherwise one element. Errors: kInvalidArgument for
// other shapes, types or strides, and for outputs over inputs in part; kUnsupported where the build
// has no CUDA; those of a launch.
struct AttentionMergeArgs {
  Tensor out_a;
  Tensor lse_a;
  Tensor out_b;
  Tensor lse_b;
  Tensor out;
  Tensor lse;
};
Status AttentionMerge(const AttentionMergeArgs& args, cuda::StreamRef stream);
Status AttentionMergeCpu(const AttentionMergeArgs& args);
extern const cuda::Kernel kAttentionMergeKernel;

}  // namespace ferry::kernels
