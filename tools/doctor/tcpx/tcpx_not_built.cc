// Stands for the checks of GPUDirect-TCPX in builds without its host (FERRY_TCPX=OFF).
#ifdef FERRY_WITHOUT_TCPX

#include "tools/doctor/tcpx/tcpx.h"

namespace ferry::tools {

std::vector<Check> CheckTcpx(SystemView* /*system*/, bool asked,
                             const std::vector<Check>& /*others*/, Deadline /*deadline*/) {
  return {{"tcpx", asked ? Verdict::kProblem : Verdict::kSkipped,
           "this build has no host of GPUDirect-TCPX (FERRY_TCPX=OFF)",
           asked ? "cmake -DFERRY_TCPX=ON ..." : ""}};
}

std::optional<Check> CheckTcpxPeer(const Context& /*context*/) { return std::nullopt; }

std::optional<PortRange> TcpxPortRange(SystemView* /*system*/, bool /*asked*/) {
  return std::nullopt;
}

}  // namespace ferry::tools

#endif  // FERRY_WITHOUT_TCPX
