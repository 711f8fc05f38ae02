// The provider that the settings ask for.
#pragma once
#include <memory>
#include <string>

#include "ferry/core/config.h"
#include "ferry/core/result.h"
#include "ferry/net/provider.h"

namespace ferry::net {

// What config.provider comes to, and why.
struct ProviderChoice {
  std::string provider;  // "tcp", "plugin" or "plugin:PATH"
  std::string reason;
};
// For "auto" looks at the machine: GPUDirect-TCPX where it is set up for it, otherwise TCP.
ProviderChoice ResolveProvider(const Config& config);

// The provider that config.provider names; the choice of "auto" is logged once in a process, at
// level info. Loading a plugin may take seconds. Errors: kInvalidArgument for an unknown name;
// those of tcpx::CreateProvider().
Result<std::unique_ptr<Provider>> ChooseProvider(const Config& config);

}  // namespace ferry::net
