// Ordering between a kernel and the next one of its stream when that one is launched early
// (LaunchConfig::early; PTX ISA, "griddepcontrol", sm_90). Kernels that are launched without it
// run one after the other, as do all kernels on older GPUs; the functions here do nothing then.
#pragma once

namespace ferry::cuda::prim {

// griddepcontrol.wait: blocks until all earlier kernels have ended and their writes are visible.
// Each warp calls it before it accesses memory that they may have used.
__device__ __forceinline__ void GridDependencySynchronize() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// griddepcontrol.launch_dependents: the next kernel may start once each thread block has called
// this or has ended. It implies no memory ordering.
__device__ __forceinline__ void LetNextGridBegin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

}  // namespace ferry::cuda::prim
