// Logs the steps of lanes over plugins at level info, in the words of UCCL's test_tcpx_transfer.
#pragma once
#include <cstddef>
#include <span>
#include <string>

#include "ferry/core/log.h"
#include "ferry/tcpx/host/plugin.h"
#include "ferry/tcpx/host/unpack_rows.h"
#include "ferry/tcpx/lane/chunk.h"
#include "ferry/tcpx/lane/lane_gpu.h"
#include "ferry/tcpx/uccl_variables.h"
#include "ferry/tcpx/unpack/fragments.h"

namespace ferry::tcpx {

// The chunks of a lane whose steps are logged: the first one, and with UCCL_TCPX_LAUNCH_DEBUG all.
class LoggedChunks {
 public:
  bool Have(const Chunk& chunk) const noexcept {
    return (chunk.number == 0 || each_) && LogEnabled(LogLevel::kInfo);
  }

 private:
  const bool each_ = ReadUcclLogSwitches().each_chunk;
};

void LogDevices(const Plugin& plugin);
void LogHandle(const UnpackRows& rows);

// At most the first 32 bytes of host memory: "02 00 1f".
std::string FirstBytes(std::span<const std::byte> bytes);

class GpuReader;

// Reads the start of what a plugin has left in host or GPU memory. Any thread.
class PoolReader {
 public:
  // `pool` is where the plugin leaves messages; what is needed to read it from a GPU is allocated
  // here.
  PoolReader(const LaneGpu& gpu, const std::byte* pool);
  std::string FirstBytes(const std::byte* from, std::size_t bytes) const;

 private:
  bool on_gpu_ = false;
  GpuReader* reader_ = nullptr;  // none for host memory, or where there is no pinned memory
};

// A received chunk before it is unpacked.
struct ArrivedChunk {
  const Chunk& chunk;
  std::string name;
  std::span<const Fragment> fragments;  // in the plugin's pool
  const std::byte* pool;
  const void* request;  // layout::Request; null for a plugin with other requests
};
// All of the first chunk of a lane, a line for others.
void LogArrival(const ArrivedChunk& arrived, const PoolReader& pool);

}  // namespace ferry::tcpx
