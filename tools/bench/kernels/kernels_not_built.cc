// Stands for `ferry kernel-bench` in builds without the kernels (FERRY_KERNELS=OFF).
#ifdef FERRY_WITHOUT_KERNELS

#include "tools/bench/kernels/kernels.h"

namespace ferry::tools {

Status RunKernelBench(const KernelBenchJob& /*job*/) {
  return Error(Code::kUnsupported,
               "kernel-bench measures the kernels for inference, which are not in this build; "
               "configure it with -DFERRY_KERNELS=ON");
}

}  // namespace ferry::tools

#endif  // FERRY_WITHOUT_KERNELS
