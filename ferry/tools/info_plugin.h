// The NCCL plugin section of `ferry info`, as JSON and as text.
#pragma once
#include "ferry/core/config.h"
#include "ferry/tools/json.h"

namespace ferry::tools {

// Loads and starts the plugin that was asked for: its facts, or why it cannot be used. Null where
// none was.
Json PluginInfo(const Config& config);
void PrintPlugin(const Json& plugin);

}  // namespace ferry::tools
