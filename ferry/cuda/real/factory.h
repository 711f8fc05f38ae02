// Creates the DeviceApi for real GPUs.
#pragma once
#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"

namespace ferry::cuda::real {

// Creates the devices that RealDevices() returns; call once per process.
Result<DeviceApi*> CreateDevices();

}  // namespace ferry::cuda::real
