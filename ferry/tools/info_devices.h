#pragma once
#include "ferry/core/config.h"
#include "ferry/tools/json.h"

// What `ferry info` tells of GPUs, as JSON and as the lines made from it.
namespace ferry::tools {

// The devices that FERRY_DEVICES selects, and the versions of driver and runtime; or why there are
// none. Uses no GPU memory.
Json DeviceInfo(const Config& config);
void PrintDevices(const Json& devices);

}  // namespace ferry::tools
