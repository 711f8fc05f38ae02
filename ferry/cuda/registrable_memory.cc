// Aligns GPU memory for network cards.
#include "ferry/cuda/registrable_memory.h"

#include <utility>

#include "ferry/cuda/address.h"

namespace ferry::cuda {

Result<RegistrableMemory> AllocateRegistrable(DeviceApi* api, int ordinal, std::size_t bytes) {
  RegistrableMemory memory;
  FERRY_TRY_ASSIGN(memory.buffer, api->AllocateDevice(ordinal, bytes + kRegistrationAlignment));
  auto* const begin = static_cast<std::byte*>(memory.buffer.data());
  const std::uint64_t beyond = AddressOf(begin) % kRegistrationAlignment;
  memory.data = begin + (beyond == 0 ? 0 : kRegistrationAlignment - beyond);
  return memory;
}

}  // namespace ferry::cuda
