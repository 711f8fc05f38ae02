// The GPU section of `ferry info`, as JSON and as text.
#pragma once
#include "ferry/core/config.h"
#include "ferry/tools/support/json.h"

namespace ferry::tools {

// The devices that FERRY_DEVICES selects, and the versions of driver and runtime; or why there are
// none. Uses no GPU memory.
Json DeviceInfo(const Config& config);
void PrintDevices(const Json& devices);

}  // namespace ferry::tools
