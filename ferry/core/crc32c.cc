// CRC-32C by ISA-L.
#include "ferry/core/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>

namespace ferry {
namespace {

// crc32_iscsi counts its bytes in an int.
constexpr std::size_t kMaxPiece = std::size_t{1} << 30;

// crc32_iscsi declares its input writable but only reads it.
unsigned char* IsalPointer(const std::byte* bytes) {
  return static_cast<unsigned char*>(static_cast<void*>(const_cast<std::byte*>(bytes)));
}

}  // namespace

// Pieces chain: the result of one call is the `previous` of the next, and 0 begins. So a checksum
// over scattered blocks is that of their concatenation.
std::uint32_t Crc32c(std::span<const std::byte> bytes, std::uint32_t previous) noexcept {
  // ISA-L leaves the inversion before and after to its caller.
  std::uint32_t state = ~previous;
  while (!bytes.empty()) {
    const std::size_t piece = std::min(bytes.size(), kMaxPiece);
    state = crc32_iscsi(IsalPointer(bytes.data()), static_cast<int>(piece), state);
    bytes = bytes.subspan(piece);
  }
  return ~state;
}

}  // namespace ferry
