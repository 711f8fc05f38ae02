// Chooses the provider by its name in the settings.
#include "ferry/net/choose_provider.h"

#include <mutex>

#include "ferry/core/log.h"
#include "ferry/net/builtin.h"
#include "ferry/tcpx/factory.h"

namespace ferry::net {

ProviderChoice ResolveProvider(const Config& config) {
  if (config.provider != "auto") return {config.provider, "the setting provider names it"};
  const tcpx::AutoChoice choice = tcpx::ChooseForMachine(config);
  return {choice.provider, choice.reason};
}

// Apart from builtin.cc, so that what uses TCP only does not carry the host of plugins.
Result<std::unique_ptr<Provider>> ChooseProvider(const Config& config) {
  const ProviderChoice choice = ResolveProvider(config);
  if (config.provider == "auto") {
    static std::once_flag logged;
    std::call_once(logged, [&] {
      Log(LogLevel::kInfo, "net", "provider auto is {}: {}", choice.provider, choice.reason);
    });
  }
  if (choice.provider == "tcp") return CreateBuiltinProvider();
  if (choice.provider == "plugin" || choice.provider.rfind("plugin:", 0) == 0) {
    Config resolved = config;
    resolved.provider = choice.provider;
    return tcpx::CreateProvider(resolved, CreateBuiltinProvider());
  }
  return Error(Code::kInvalidArgument,
               "there is no provider '" + config.provider +
                   "'; set FERRY_PROVIDER to tcp, auto, or to plugin:PATH with the file of an NCCL "
                   "network plugin");
}

}  // namespace ferry::net
