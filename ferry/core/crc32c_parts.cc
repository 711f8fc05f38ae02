// Contributions of parts to a CRC-32C.
#include "ferry/core/crc32c_parts.h"

#include "ferry/core/crc32c.h"

namespace ferry {

// The state that the bytes leave of a state of zero, moved from their end to the whole's start:
// the place that all parts have in common.
std::uint32_t Crc32cPart(std::span<const std::byte> bytes, std::uint64_t offset) noexcept {
  return CrcMultiply(~Crc32c(bytes, ~std::uint32_t{0}), CrcPower(offset + bytes.size(), kCrcBack));
}

// A CRC begins with a state of ones, which are another contribution from the whole's start.
std::uint32_t Crc32cOfParts(std::uint32_t parts, std::uint64_t bytes) noexcept {
  return ~CrcMultiply(~parts, CrcPower(bytes, kCrcForward));
}

}  // namespace ferry
