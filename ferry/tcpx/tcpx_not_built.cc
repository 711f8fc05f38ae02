// Stands for the host of NCCL network plugins in builds without it (FERRY_TCPX=OFF).
#ifdef FERRY_WITHOUT_TCPX

#include "ferry/tcpx/factory.h"
#include "ferry/tcpx/uccl_variables.h"

namespace ferry::tcpx {

Result<std::unique_ptr<net::Provider>> CreateProvider(const Config& config,
                                                      std::unique_ptr<net::Provider> /*control*/) {
  return Error(Code::kUnsupported,
               "provider " + config.provider +
                   " needs the host of NCCL network plugins, which is not in this build; configure "
                   "it with -DFERRY_TCPX=ON, or choose the provider tcp (FERRY_PROVIDER)");
}

AutoChoice ChooseForMachine(const Config& /*config*/) {
  return {"tcp", "this build has no host of NCCL network plugins (FERRY_TCPX=OFF)"};
}

std::span<const UcclVariable> UcclVariables() { return {}; }

Status ApplyUcclVariables(Config* /*config*/) { return Ok(); }

}  // namespace ferry::tcpx

#endif  // FERRY_WITHOUT_TCPX
