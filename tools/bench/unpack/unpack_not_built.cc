// Stands for `ferry copy-bench --unpack` in builds without the host of NCCL network plugins.
#ifdef FERRY_WITHOUT_TCPX

#include "tools/bench/unpack/unpack.h"

namespace ferry::tools {
namespace {

Error UnpackNotBuilt() {
  return Error(Code::kUnsupported,
               "copy-bench --unpack measures the kernels of GPUDirect-TCPX's host, which is not in "
               "this build; configure it with -DFERRY_TCPX=ON");
}

}  // namespace

Status RunUnpackBench(const UnpackBenchJob& /*job*/) { return UnpackNotBuilt(); }
Status RunRowsBench(const UnpackBenchJob& /*job*/) { return UnpackNotBuilt(); }
Status RunUnpackLadder(const UnpackBenchJob& /*job*/) { return UnpackNotBuilt(); }

}  // namespace ferry::tools

#endif  // FERRY_WITHOUT_TCPX
