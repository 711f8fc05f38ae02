// Fused op of a decoder layer: RMS norm of q and k, rotary embedding, store to the paged cache.
#pragma once
#include <cstdint>

#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/kernels/tensor.h"

namespace ferry::kernels {

// All that lies between a projection and attention, in one pass over the projection's output: for
// each token, q and k of each head are normalised (rms_norm/rms_norm.h, over head_dim), rotated
// (rope/rope.h), and written; k and v are stored in paged caches (store_kvcache/store_kvcache.h).
// Results are those of the three ops one after the other, which round q and k after each: but for
// the order of the sum, to the last bit.
//   qkv                 [tokens, (q_heads + 2 kv_heads) * head_dim] fp32, fp16 or bf16, the stride
//                       of the tokens is free: all heads of q, then of k, then of v
//   q_weight, k_weight  [head_dim] of the same type, contiguous
//   positions, cos_sin_cache, is_neox  as rope has them, of R elements from 2 to head_dim
//   q_out, k_out        [tokens, q_heads or kv_heads, head_dim], any strides but 1 for the last
//                       size; may be their parts of qkv. k_out may be left out
//   k_cache, v_cache, slots, k_scale, v_scale  as store_kvcache has them; the three tensors may be
//                       left out, and nothing is stored then
// A position or a slot that there is not: the form for the CPU does nothing at all and returns
// kInvalidArgument; on GPUs nothing of a token without a position is written, one without a slot is
// not stored, and device code built for a debugger traps.
// Moves 16 bytes at a time where R is head_dim, half of it is one of as many elements and at most
// 512 bytes, and all heads begin at multiples of 16 bytes; otherwise one element.
// Other errors: kInvalidArgument for other shapes, types or strides and for what is written over
// what is read; kUnsupported where the build has no CUDA; those of a launch.
struct QkNormRopeStoreArgs {
  Tensor qkv;
  std::int64_t q_heads = 0;
  std::int64_t kv_heads = 0;
  Tensor q_weight;
  Tensor k_weight;
  float eps = 1e-6F;
  Tensor positions;
  Tensor cos_sin_cache;
  Tensor q_out;
  Tensor k_out;
  Tensor k_cache;
  Tensor v_cache;
  Tensor slots;
  float k_scale = 1;
  float v_scale = 1;
  bool is_neox = true;
};
Status QkNormRopeStore(const QkNormRopeStoreArgs& args, cuda::StreamRef stream);
Status QkNormRopeStoreCpu(const QkNormRopeStoreArgs& args);
extern const cuda::Kernel kQkNormRopeStoreKernel;

}  // namespace ferry::kernels
