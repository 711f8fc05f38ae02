// A trap that exists in debug builds of device code only.
#pragma once

namespace ferry::prim {

// trap (PTX ISA, "trap"), in device code that is built for a debugger (nvcc -G): ends the kernel,
// and the device is lost to the process. Otherwise nothing: what calls it goes on in its defined
// way.
__device__ __forceinline__ void TrapInDebug() {
#ifdef __CUDACC_DEBUG__
  __trap();
#endif
}

}  // namespace ferry::prim
