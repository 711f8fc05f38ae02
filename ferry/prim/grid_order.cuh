// Ordering between a kernel and the next one of its stream when that one is launched early
// (LaunchConfig::early; PTX ISA, "griddepcontrol", sm_90). Kernels that are launched without it
// run one after the other, as do all kernels on older GPUs; the functions here do nothing then.
#pragma once

namespace ferry::prim {

// griddepcontrol.wait: until all kernels before this one have ended and what they wrote can be
// seen. Each warp that reads or writes what others may have had calls it first.
__device__ __forceinline__ void WaitForGridsBefore() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// griddepcontrol.launch_dependents: the next kernel may come to the GPU when each thread block has
// called this or has ended. Says nothing about memory.
__device__ __forceinline__ void LetNextGridBegin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

}  // namespace ferry::prim
