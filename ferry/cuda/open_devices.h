// Access to the process's GPUs, real or simulated.
#pragma once
#include "ferry/core/config.h"
#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"

namespace ferry::cuda {

// The GPUs of this machine that CUDA shows this process. Found once; lives as long as the program.
// Costs no GPU memory: a device's context is made when it is first used. Errors: kUnsupported or
// kUnavailable where there are none, saying why.
Result<DeviceApi*> RealDevices();

// Those that the setting `devices` tells: RealDevices(), none (kUnsupported), or simulated ones,
// which all who ask with the same value share. Lives as long as the program.
Result<DeviceApi*> OpenDevices(const Config& config);

// False where no memory of this process can be a GPU's, as nothing in it has used one yet. Fast.
bool MayHaveDeviceMemory(const Config& config);

// The architectures that device code was made for, as CMake names them: "90a-real"; "" without
// CUDA.
const char* DeviceCodeTargets() noexcept;

}  // namespace ferry::cuda
