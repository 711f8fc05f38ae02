// Stores keys and values of tokens in a paged cache.
#pragma once
#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/kernels/tensor.h"

namespace ferry::kernels {

// k_cache[slots[t] / block, slots[t] % block, h, d] = k[t, h, d], and v in the same way, for each
// token t whose slot is not negative. Where the caches are e4m3, what is stored is E4M3(k * (1 /
// k_scale)), in fp32, at most 448 either way (number.h); otherwise the scales mean nothing, and the
// bits are copied.
//   k, v              [tokens, heads, head_dim] or [tokens, heads * head_dim] fp32, fp16 or bf16;
//                     the stride of the tokens is free, what a token has is contiguous; any sizes
//   k_cache, v_cache  [blocks, block, heads, head_dim] of the same type or e4m3; the strides of all
//                     but the last size are free, so that heads may lie before tokens
//   slots             int32 or int64 [tokens], contiguous; no slot twice, or either token's is
//   stored
// A slot that the caches do not have: the form for the CPU does nothing at all and returns
// kInvalidArgument; on GPUs that token is not stored, and device code built for a debugger traps.
// Moves 16 bytes at a time where all tokens begin at multiples of 16 bytes (8 or 4 in e4m3 caches),
// and so do all heads in caches where a token's are apart; otherwise one element.
// Other errors: kInvalidArgument for other shapes, types or strides, for caches over anything else,
// and for scales that are not above 0 or whose inverse is infinite; kUnsupported where the build
// has no CUDA; those of a launch.
struct StoreKvCacheArgs {
  Tensor k;
  Tensor v;
  Tensor k_cache;
  Tensor v_cache;
  Tensor slots;
  float k_scale = 1;
  float v_scale = 1;
};
Status StoreKvCache(const StoreKvCacheArgs& args, cuda::StreamRef stream);
Status StoreKvCacheCpu(const StoreKvCacheArgs& args);
extern const cuda::Kernel kStoreKvCacheKernel;

}  // namespace ferry::kernels
