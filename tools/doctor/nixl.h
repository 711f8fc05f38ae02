// Doctor checks for libplugin_FERRY.so as NIXL's back end: wheel, plug-in, folder of plug-ins,
// ports and settings (docs/nixl.md). They load no library.
#pragma once
#include <string>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/core/deadline.h"
#include "tools/doctor/check.h"
#include "tools/doctor/system.h"
#include "tools/doctor/tcpx/plugin_file.h"

namespace ferry::tools {

// A wheel of NIXL in a Python environment.
struct NixlWheel {
  std::string package;  // "nixl_cu12"
  std::string version;  // "1.5.1"
  std::string site;     // the folder of packages

  // The folder in which NIXL finds plug-ins without NIXL_PLUGIN_DIR.
  std::string Plugins() const { return site + "/." + package + ".mesonpy.libs/plugins"; }
};

// The wheels of the first environment that has any: VIRTUAL_ENV, CONDA_PREFIX, those of the
// programs python3 in PATH, the user's own packages.
std::vector<NixlWheel> FindNixlWheels(const PluginSetup& setup);

// Runs all checks if the user asked for them or NIXL_PLUGIN_DIR is set; otherwise one check that is
// skipped.
std::vector<Check> CheckNixl(SystemView* system, const Config& config, bool asked,
                             Deadline deadline);

// The parts of CheckNixl, which it calls in this order.
Check CheckNixlWheel(const PluginSetup& setup);
Check CheckNixlPlugin(const PluginSetup& setup);
Check CheckNixlFolder(const PluginSetup& setup);
Check CheckNixlDropIn(const PluginSetup& setup);
Check CheckNixlPorts(const PluginSetup& setup);
Check CheckNixlSettings(const PluginSetup& setup);

}  // namespace ferry::tools
