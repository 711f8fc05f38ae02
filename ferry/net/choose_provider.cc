// Chooses the provider by its name in the settings.
#include "ferry/net/choose_provider.h"

#include "ferry/net/builtin.h"
#include "ferry/net/plugin/factory.h"

namespace ferry::net {

// Apart from builtin.cc, so that what uses TCP only does not carry the host of plugins.
Result<std::unique_ptr<Provider>> ChooseProvider(const Config& config) {
  if (config.provider == "tcp") return CreateBuiltinProvider();
  if (config.provider == "plugin" || config.provider.rfind("plugin:", 0) == 0) {
    return plugin::CreateProvider(config, CreateBuiltinProvider());
  }
  return Error(Code::kInvalidArgument,
               "there is no provider '" + config.provider +
                   "'; set FERRY_PROVIDER to tcp, or to plugin:PATH with the file of an NCCL "
                   "network plugin");
}

}  // namespace ferry::net
