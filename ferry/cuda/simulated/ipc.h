// Sharing of simulated device memory between processes.
#pragma once
#include <cstddef>
#include <cstdint>

#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/cuda/simulated/arena.h"

// Simulated devices of two processes share memory through the exporter's memfd: the handle names
// it, and the importer opens it under /proc and maps it.
namespace ferry::cuda {

IpcExport MakeSimulatedExport(const SimulatedArena& arena, std::size_t allocation_offset,
                              std::size_t allocation_bytes);
// Errors, as on a GPU: kInvalidArgument for invalid bytes and for an export of this process;
// kUnavailable where the exporter has exited or may not be inspected.
Result<TwiceMapped> MapSimulatedExport(const IpcExport& exported);

}  // namespace ferry::cuda
