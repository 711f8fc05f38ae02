// The end of a row of attention: its sink joins the softmax, and its logarithm is kept.
#pragma once
#include "ferry/cuda/prim/float_math.cuh"
#include "ferry/kernels/attention_argument.h"

namespace ferry::kernels {

struct RowEnd {
  float factor;  // of the sum of weights times values; 0 for no weights
  float lse;     // natural; -inf for no scores
};

// `sum` is that of weights 2^(score * scale - base), where scale includes log2(e) and base is -inf
// for no keys. `sink` is null for none. NaN stays NaN.
__device__ __forceinline__ RowEnd EndRow(float base, float sum, const float* sink) {
  constexpr float kLn2 = 0.693147180559945309F;
  float keep = 1;
  if (sink != nullptr) {
    const float score = __ldg(sink) * kLog2E;
    const float now = fmaxf(base, score);
    if (now != -INFINITY) {
      keep = base == -INFINITY ? 0.0F : cuda::prim::Exp2(base - now);
      sum = sum * keep + cuda::prim::Exp2(score - now);
      base = now;
    }
  }
  return {sum == 0 ? 0.0F : keep / sum, sum == 0 ? -INFINITY : (base + log2f(sum)) * kLn2};
}

}  // namespace ferry::kernels
