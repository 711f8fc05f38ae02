// Host memory for measurements, in huge pages where available.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "ferry/core/mapping.h"
#include "ferry/core/result.h"

namespace ferry::tools {

// Host memory for measurements: huge pages where there are any, aligned to them, and every page in
// place.
class HostBuffer {
 public:
  HostBuffer() = default;
  // Errors: kUnavailable for more than the machine has left.
  static Result<HostBuffer> Allocate(std::uint64_t bytes);

  std::span<std::byte> bytes() const noexcept { return memory_.bytes; }

 private:
  explicit HostBuffer(HugeMemory memory) : memory_(std::move(memory)) {}

  HugeMemory memory_;
};

}  // namespace ferry::tools
