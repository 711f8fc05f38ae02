#pragma once
#include "ferry/core/config.h"
#include "ferry/tools/json.h"

// What `ferry info` tells of a NCCL network plugin, as JSON and as the lines made from it.
namespace ferry::tools {

// Loads and starts the plugin that was asked for: its facts, or why it cannot be used. Null where
// none was.
Json PluginInfo(const Config& config);
void PrintPlugin(const Json& plugin);

}  // namespace ferry::tools
