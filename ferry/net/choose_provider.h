// The provider that the settings ask for.
#pragma once
#include <memory>

#include "ferry/core/config.h"
#include "ferry/core/result.h"
#include "ferry/net/provider.h"

namespace ferry::net {

// The provider that config.provider names. Loading a plugin may take seconds. Errors:
// kInvalidArgument for an unknown name; those of plugin::CreateProvider().
Result<std::unique_ptr<Provider>> ChooseProvider(const Config& config);

}  // namespace ferry::net
