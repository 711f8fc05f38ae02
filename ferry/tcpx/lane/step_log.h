// Logs the steps of lanes over plugins at level info.
#pragma once
#include <span>
#include <string>

#include "ferry/tcpx/host/plugin.h"
#include "ferry/tcpx/host/receiver.h"
#include "ferry/tcpx/lane/lane_gpu.h"

namespace ferry::net::plugin {

void LogDevices(const Plugin& plugin);

// At most the first 16 bytes of host memory: "02 00 1f".
std::string FirstBytes(std::span<const std::byte> bytes);

// Logs the first chunk that arrives, and later ones in a line each where UCCL_TCPX_LAUNCH_DEBUG
// asks for it. Null where level info is not logged. `pool` is where a plugin leaves messages; what
// is needed to read it from a GPU is allocated here.
ChunkWatcher MakeArrivalLog(const LaneGpu& gpu, const std::byte* pool);

}  // namespace ferry::net::plugin
