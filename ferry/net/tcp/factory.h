// Creates the TCP provider.
#pragma once
#include <memory>

#include "ferry/net/provider.h"

namespace ferry::net::tcp {

// The built-in provider: one TCP socket per lane, IPv4 and IPv6, no staging.
std::unique_ptr<Provider> CreateProvider();

}  // namespace ferry::net::tcp
