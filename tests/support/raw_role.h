// A peer role without the engine, which sends a write and stops in the middle.
#pragma once
#include "tests/support/peer_process.h"

namespace ferry::tests {

// A peer without an engine, in the child: "half_write PORT KEY ANNOUNCED SENT" shakes hands with
// the endpoint at that port of 127.0.0.1 and sends the first SENT bytes of a write of ANNOUNCED
// bytes 0x5A; "close", "reset" or "silence" follows.
int RunRawPeer(LinePipe& parent);

}  // namespace ferry::tests
