// Sharing of simulated device memory between processes.
#pragma once
#include <cstddef>
#include <cstdint>

#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"
#include "ferry/cuda/simulated_arena.h"

// How simulated devices of two processes share memory: the handle names the exporter's memfd, which
// the importer opens under /proc and maps.
namespace ferry::cuda {

IpcExport MakeSimulatedExport(const SimulatedArena& arena, std::size_t allocation_offset,
                              std::size_t allocation_bytes);
// Errors, as a GPU has them: kInvalidArgument for other bytes and for an export of this process;
// kUnavailable where the exporter is gone or not ours to look at.
Result<TwiceMapped> MapSimulatedExport(const IpcExport& exported);

}  // namespace ferry::cuda
