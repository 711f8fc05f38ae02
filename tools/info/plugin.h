// The NCCL plugin section of `ferry info`, as JSON and as text.
#pragma once
#include "ferry/core/config.h"
#include "tools/support/json.h"

namespace ferry::tools {

// Loads and initialises the configured plugin and returns its facts, or the reason why it cannot be
// used. Null if none is configured.
Json PluginInfo(const Config& config);
void PrintPlugin(const Json& plugin);

}  // namespace ferry::tools
