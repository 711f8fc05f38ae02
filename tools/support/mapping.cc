// Implements host memory for measurements.

#include "tools/support/mapping.h"

#include <fmt/core.h>

#include <cstring>
#include <utility>

#include "ferry/core/units.h"
#include "tools/support/process.h"

namespace ferry::tools {

Result<HostBuffer> HostBuffer::Allocate(std::uint64_t bytes) {
  const std::uint64_t available = AvailableMemory();
  if (bytes > available && available != 0) {
    return Error(Code::kUnavailable,
                 fmt::format("a buffer of {} does not fit: {} MiB of memory are available",
                             FormatSize(bytes), available / kMiB));
  }
  FERRY_TRY_ASSIGN(HugeMemory memory, MapHugePages(bytes));
  std::memset(memory.bytes.data(), 0x5A, memory.bytes.size());
  return HostBuffer(std::move(memory));
}

}  // namespace ferry::tools
