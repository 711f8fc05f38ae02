// GPU memory that network cards can register.
#pragma once
#include <cstddef>

#include "ferry/core/result.h"
#include "ferry/cuda/device_api.h"

namespace ferry::cuda {

// GPUDirect-TCPX registers GPU memory from such an address on.
inline constexpr std::size_t kRegistrationAlignment = 4096;

// Device memory of which `data` begins at a multiple of kRegistrationAlignment.
struct RegistrableMemory {
  DeviceBuffer buffer;
  std::byte* data = nullptr;
};

// With `bytes` from `data` on. Errors: those of DeviceApi::AllocateDevice().
Result<RegistrableMemory> AllocateRegistrable(DeviceApi* api, int ordinal, std::size_t bytes);

}  // namespace ferry::cuda
