// Doctor checks for libnccl-net-ferry.so as NCCL's network: library, machine and NCCL variables
// (docs/nccl_net.md). They load no library.
#pragma once
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/deadline.h"
#include "tools/doctor/check.h"
#include "tools/doctor/system.h"
#include "tools/doctor/tcpx/plugin_file.h"

namespace ferry::tools {

// Runs all checks if the user asked for them or a variable of NCCL's names a plugin; otherwise one
// check that is skipped or harmless.
std::vector<Check> CheckNccl(SystemView* system, const Config& config, bool asked,
                             Deadline deadline);

// The parts of CheckNccl, which it calls in this order.
Check CheckNcclPlugin(const PluginSetup& setup);
Check CheckNcclGlibc(const PluginSetup& setup);
Check CheckNcclLibrary(const PluginSetup& setup);
Check CheckNcclVariables(const PluginSetup& setup);
Check CheckNcclTuner(const PluginSetup& setup);
Check CheckNcclFiles(const PluginSetup& setup);

}  // namespace ferry::tools
