// The peer role "echo": it accepts every peer, has regions that every peer may read and write,
// sends every message back and receives every notification. If its settings name GPUs, messages of
// every other peer are received in GPU memory.
#pragma once
#include "tests/support/peer_process.h"

namespace ferry::tests {

inline constexpr std::uint64_t kEchoMax = 300 * 1000;  // bytes of a message

// The commands: "endpoint NAME=VALUE...": the address, "region BYTES PLACE": the key of one more,
// in the memory of GPU PLACE, or of the host for -1, "descriptors": how many are open,
// "connections": how many are served, "resident": bytes of host memory, "available": bytes that
// each GPU has left, "slots": how many of those between GPUs and network are in use.
int RunEchoPeer(LinePipe& parent);

// Descriptors that this process has open, other than those of NVIDIA's driver.
std::size_t OpenDescriptors();
// Bytes of memory that this process holds.
std::uint64_t ResidentBytes();

}  // namespace ferry::tests
