// The CRC-32C checksum of a slice's bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace ferry {

// CRC-32C (Castagnoli; RFC 3720 section 12.1, check value 0xE3069283 for "123456789") of
// everything summed into `previous`, followed by `bytes`. 0 starts, and is the sum of nothing:
//   Crc32c(b, Crc32c(a)) == Crc32c(a and b joined)
// Any size, any alignment, any thread.
std::uint32_t Crc32c(std::span<const std::byte> bytes, std::uint32_t previous = 0) noexcept;

}  // namespace ferry
