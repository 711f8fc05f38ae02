// Host memory for measurements, in huge pages where available.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "ferry/core/mapping.h"
#include "ferry/core/result.h"

namespace ferry::tools {

// Host memory for measurements: in huge pages if available, aligned to them, with every page
// resident.
class HostBuffer {
 public:
  HostBuffer() = default;
  // Errors: kUnavailable if the machine has less memory available.
  static Result<HostBuffer> Allocate(std::uint64_t bytes);

  std::span<std::byte> bytes() const noexcept { return memory_.bytes; }

 private:
  explicit HostBuffer(HugeMemory memory) : memory_(std::move(memory)) {}

  HugeMemory memory_;
};

}  // namespace ferry::tools
