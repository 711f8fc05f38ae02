// Float functions for which the GPU has an instruction.
#pragma once

namespace ferry::cuda::prim {

// ex2.approx.ftz.f32 (PTX ISA, "Floating Point Instructions: ex2"): 2^x to about 2 ulp; 0 for -inf
// and wherever the result is below the normal numbers.
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// rcp.approx.ftz.f32 (PTX ISA, "rcp"): 1 / x to 1 ulp; 0 for infinities and wherever the result is
// below the normal numbers.
__device__ __forceinline__ float Reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace ferry::cuda::prim
