#pragma once

// Functions of floats that the GPU has an instruction for.
namespace ferry::prim {

// ex2.approx.ftz.f32 (PTX ISA, "Floating Point Instructions: ex2"): 2^x to about 2 ulp; 0 for -inf
// and wherever the result is below the normal numbers.
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace ferry::prim
