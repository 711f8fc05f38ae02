// Settings that depend on the provider where the user has left them alone.
#pragma once
#include "ferry/core/config.h"
#include "ferry/net/provider.h"

namespace ferry::transfer {

// The config with slices, and a window for a few of them, as large as the provider's lanes need to
// keep the network busy (Capabilities::busy_payload_bytes). What the user has set stays.
Config FittedTo(const net::Capabilities& capabilities, Config config);

}  // namespace ferry::transfer
