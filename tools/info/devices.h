// The GPU section of `ferry info`, as JSON and as text.
#pragma once
#include <string_view>

#include "ferry/core/config.h"
#include "tools/support/json.h"

namespace ferry::tools {

// The devices that FERRY_DEVICES selects, and the versions of driver and runtime; or why there are
// none. Uses no GPU memory.
Json DeviceInfo(const Config& config);
// A GPU's `code` in it, for device code for `targets` (cuda::CodeFor): its kind and target, and
// where there is none, what follows and how to get it as `fix`.
Json CodeInfo(std::string_view targets, int major, int minor);
void PrintDevices(const Json& devices);

}  // namespace ferry::tools
