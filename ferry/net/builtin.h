// The default provider.
#pragma once
#include <memory>

#include "ferry/net/provider.h"

namespace ferry::net {

// The provider of endpoints that name none: TCP.
std::unique_ptr<Provider> CreateBuiltinProvider();

}  // namespace ferry::net
