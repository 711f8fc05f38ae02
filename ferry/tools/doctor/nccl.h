// Doctor checks for libnccl-net-ferry.so as NCCL's network: library, machine and NCCL variables
// (docs/nccl_net.md). They load no library.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/deadline.h"
#include "ferry/tools/doctor/check.h"
#include "ferry/tools/doctor/system.h"

namespace ferry::tools {

// The inputs that the checks share.
struct NcclSetup {
  SystemView* system = nullptr;
  Config config;
  std::map<std::string, std::string> environment;
  Deadline deadline;

  // The value of an environment variable; an empty one counts as unset.
  std::optional<std::string> Variable(const std::string& name) const;
};

// Runs all checks if the user asked for them or a variable of NCCL's names a plugin; otherwise one
// check that is skipped or harmless.
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
