// Logs the steps of lanes over plugins at level info.
#pragma once
#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "ferry/tcpx/host/plugin.h"
#include "ferry/tcpx/lane/chunk.h"
#include "ferry/tcpx/lane/lane_gpu.h"
#include "ferry/tcpx/unpack/fragments.h"

namespace ferry::tcpx {

// A received chunk before it is unpacked.
struct WatchedChunk {
  const Chunk& chunk;
  std::span<const Fragment> fragments;  // in the plugin's pool
  const std::byte* pool;
  const void* request;  // layout::Request; null for a plugin with other requests
};
// Called with the next chunk as long as it returns true. The CPU has read and validated the first
// one, unless it is dropped; the GPU may still have to validate later ones.
using ChunkWatcher = std::function<bool(const WatchedChunk& watched)>;

void LogDevices(const Plugin& plugin);

// At most the first 16 bytes of host memory: "02 00 1f".
std::string FirstBytes(std::span<const std::byte> bytes);

// Logs the first chunk that arrives, and later ones in a line each where UCCL_TCPX_LAUNCH_DEBUG
// asks for it. Null where level info is not logged. `pool` is where a plugin leaves messages; what
// is needed to read it from a GPU is allocated here.
ChunkWatcher MakeArrivalLog(const LaneGpu& gpu, const std::byte* pool);

}  // namespace ferry::tcpx
