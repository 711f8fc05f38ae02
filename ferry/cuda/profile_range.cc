// NVTX ranges for NVIDIA's profilers.
#include "ferry/cuda/profile_range.h"

#ifdef FERRY_HAVE_CUDA
#include <nvtx3/nvToolsExt.h>
#endif

namespace ferry::cuda {

#ifdef FERRY_HAVE_CUDA

namespace {

// Null where no profiler is attached.
nvtxDomainHandle_t ProfileDomain() noexcept {
  static const nvtxDomainHandle_t domain = nvtxDomainCreateA("ferry");
  return domain;
}

}  // namespace

ProfileRange::ProfileRange(const char* name) noexcept {
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = name;
  (void)nvtxDomainRangePushEx(ProfileDomain(), &attributes);
}

ProfileRange::~ProfileRange() { (void)nvtxDomainRangePop(ProfileDomain()); }

#else

ProfileRange::ProfileRange(const char* /*name*/) noexcept {}
ProfileRange::~ProfileRange() = default;

#endif

}  // namespace ferry::cuda
