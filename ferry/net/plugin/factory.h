// Creates the provider of NCCL network plugins.
#pragma once
#include <cstdint>
#include <memory>

#include "ferry/core/config.h"
#include "ferry/core/result.h"
#include "ferry/net/provider.h"

namespace ferry::net::plugin {

// A provider whose lanes are lanes of `control`, with payloads over the plugin that config.provider
// names: "plugin:PATH", or "plugin" for the one of the setting net_plugin. Payloads may be memory
// of the host and of the first GPU. Loads the plugin, which stays for the life of the process and
// may take seconds. `chunk_bytes`: in what parts payloads are sent; both sides must use the same,
// and peers that do not are refused. Errors: those of Plugin::Open().
Result<std::unique_ptr<Provider>> CreateProvider(const Config& config,
                                                 std::unique_ptr<Provider> control,
                                                 std::uint64_t chunk_bytes = 512 * 1024);

}  // namespace ferry::net::plugin
