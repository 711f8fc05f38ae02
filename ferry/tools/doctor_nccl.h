// Doctor checks for libnccl-net-ferry.so as NCCL's network: library, machine and NCCL variables
// (docs/nccl_net.md). They load no library.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/deadline.h"
#include "ferry/tools/doctor_check.h"
#include "ferry/tools/doctor_system.h"

namespace ferry::tools {

// What the checks have in common.
struct NcclSetup {
  SystemView* system = nullptr;
  Config config;
  std::map<std::string, std::string> environment;
  Deadline deadline;

  // An empty variable is none.
  std::optional<std::string> Variable(const std::string& name) const;
};

// All of it where the user asked for it or a variable of NCCL's names a plugin, and one harmless
// check elsewhere.
std::vector<Check> CheckNccl(SystemView* system, const Config& config, bool asked,
                             Deadline deadline);

// The parts of CheckNccl, which it calls in this order.
Check CheckNcclPlugin(const NcclSetup& setup);
Check CheckNcclGlibc(const NcclSetup& setup);
Check CheckNcclLibrary(const NcclSetup& setup);
Check CheckNcclVariables(const NcclSetup& setup);
Check CheckNcclTuner(const NcclSetup& setup);
Check CheckNcclFiles(const NcclSetup& setup);

}  // namespace ferry::tools
