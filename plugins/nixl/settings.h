// The settings of the endpoint of an agent.
#pragma once
#include <string>

#include "ferry/core/config.h"
#include "ferry/core/result.h"
#include "plugins/nixl/abi.h"

namespace ferry::nixl {

// FERRY_* variables, and over them the parameters that the user gave the back end, by the names of
// our settings ("lanes"). Parameters with other names are logged and ignored: users have them for
// other back ends. Errors: kInvalidArgument naming the setting.
Result<Config> LoadSettings(const abi::Params& params);

}  // namespace ferry::nixl
