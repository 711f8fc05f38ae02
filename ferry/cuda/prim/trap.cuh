// A trap that exists in debug builds of device code only.
#pragma once

namespace ferry::cuda::prim {

// trap (PTX ISA, "trap"), in device code that is built for a debugger (nvcc -G): ends the kernel,
// after which the process has lost the device. In other builds it does nothing, and the caller
// continues in its defined way.
__device__ __forceinline__ void TrapInDebug() {
#ifdef __CUDACC_DEBUG__
  __trap();
#endif
}

}  // namespace ferry::cuda::prim
