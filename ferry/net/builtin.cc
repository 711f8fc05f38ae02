// Chooses the default provider.
#include "ferry/net/builtin.h"

#include "ferry/net/tcp/factory.h"

namespace ferry::net {

std::unique_ptr<Provider> CreateBuiltinProvider() { return tcp::CreateProvider(); }

}  // namespace ferry::net
