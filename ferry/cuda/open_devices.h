// Access to the process's GPUs, real or simulated.
#pragma once
#include "ferry/core/config.h"
#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"

namespace ferry::cuda {

// The GPUs that CUDA shows this process. Found once; lives as long as the program. Costs no GPU
// memory: a device's context is created at its first use. Errors: kUnsupported or kUnavailable,
// with the reason, where there are none.
Result<DeviceApi*> RealDevices();

// The GPUs that the setting `devices` selects: RealDevices(), none (kUnsupported), or simulated
// ones, which all callers with the same value share. Lives as long as the program.
Result<DeviceApi*> OpenDevices(const Config& config);

// Returns false if no memory of this process can belong to a GPU, because nothing in it has used
// one yet. Fast enough for every message.
bool MayHaveDeviceMemory(const Config& config);

// The architectures that device code was compiled for, in CMake's form: "90a-real"; "" without
// CUDA.
const char* DeviceCodeTargets() noexcept;

}  // namespace ferry::cuda
