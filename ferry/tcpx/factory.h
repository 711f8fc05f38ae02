// Creates the provider of NCCL network plugins.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "ferry/core/config.h"
#include "ferry/core/result.h"
#include "ferry/net/provider.h"

namespace ferry::tcpx {

// A provider whose lanes are lanes of `control`, with payloads over the plugin that config.provider
// names: "plugin:PATH", or "plugin" for the one of the setting net_plugin. Payloads may be memory
// of the host and of the GPU that is current on this thread, and lanes take the plugin's devices
// that are near it: a process with several GPUs makes a provider for each. Loads the plugin, which
// stays for the life of the process and may take seconds. Both sides must have the same
// config.plugin_chunk_bytes and plugin_tag_base; peers that do not are refused. So are those that
// do not prove the secret of `config`, before the plugin hears of them, whatever secret an endpoint
// has of its own; without one, all but processes of our user on this machine, unless
// config.insecure is on. Errors: those of Plugin::Open() and LoadSecret(); kUnsupported for a
// config.plugin_unpack that needs a GPU where there is none.
Result<std::unique_ptr<net::Provider>> CreateProvider(const Config& config,
                                                      std::unique_ptr<net::Provider> control);

// What "auto" comes to on this machine, and why.
struct AutoChoice {
  std::string provider;  // "plugin:PATH" of GPUDirect-TCPX, or "tcp"
  std::string reason;
};
// As JudgeTcpx() finds the machine; TCP with TLS. Does not load the plugin.
AutoChoice ChooseForMachine(const Config& config);

}  // namespace ferry::tcpx
