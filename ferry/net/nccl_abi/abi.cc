// Names of ncclResult_t values.
#include "ferry/net/nccl_abi/abi.h"

namespace ferry::net::nccl_abi {

const char* OutcomeName(int outcome) noexcept {
  switch (outcome) {
    case kSuccess: return "ncclSuccess";
    case kCudaError: return "ncclUnhandledCudaError";
    case kSystemError: return "ncclSystemError";
    case kInternalError: return "ncclInternalError";
    case kInvalidArgument: return "ncclInvalidArgument";
    case kInvalidUsage: return "ncclInvalidUsage";
    case kRemoteError: return "ncclRemoteError";
    case kInProgress: return "ncclInProgress";
    default: return "unknown";
  }
}

}  // namespace ferry::net::nccl_abi
