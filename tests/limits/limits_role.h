// A peer role that runs under tight resource limits.
#pragma once
#include "tests/support/peer_process.h"

namespace ferry::tests {

// A process that can do with less than others, in the child. "few_threads N": it becomes a user of
// its own who may have N threads. "create SETTINGS" makes an endpoint and lets it go again.
// "threads" and "descriptors": how many there are. "hanging_names": the name servers of this
// process take questions and never answer. "connect HOST:PORT MILLISECONDS" and
// "close_while_connecting HOST:PORT MILLISECONDS" answer with the error and how long the call took,
// "<ms> <Code> <text>".
int RunLimitedPeer(LinePipe& parent);

}  // namespace ferry::tests
