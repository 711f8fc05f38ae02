// Rights to registered memory, and the keys that peers use for it.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "ferry/core/random.h"
#include "ferry/core/result.h"

namespace ferry::transfer {

// What peers may do to a region. The process's own operations may always use it.
enum class Rights : std::uint8_t { kNone = 0, kRead = 1, kWrite = 2, kReadWrite = 3 };
constexpr bool Includes(Rights have, Rights want) noexcept {
  return (static_cast<unsigned>(have) & static_cast<unsigned>(want)) == static_cast<unsigned>(want);
}
const char* RightsName(Rights rights) noexcept;

// The region and generation of a key whose token alone names the registration.
inline constexpr std::uint32_t kNamedByToken = ~std::uint32_t{0};

// Names a registration at its owner; the same bytes go over the wire.
struct RegionKey {
  std::uint32_t region = 0;
  std::uint32_t generation = 0;
  std::uint64_t token = 0;
};
static_assert(sizeof(RegionKey) == 16);

// What a peer needs to name a region: travels as opaque bytes by whatever way the user has.
struct RemoteRegion {
  Uuid endpoint;  // owner
  RegionKey key;
  Rights rights = Rights::kNone;
  std::uint64_t length = 0;
  // log2 of the largest slice, in bytes, that the owner accepts or sends at once; 0: no limit.
  std::uint8_t most_slice_log2 = 0;
  std::uint8_t gpu = 0;  // ordinal + 1 of the owner's GPU; 0: host memory

  std::uint64_t most_slice() const noexcept {
    return most_slice_log2 == 0 ? ~std::uint64_t{0} : std::uint64_t{1} << most_slice_log2;
  }
  std::vector<std::byte> Serialize() const;
  // Errors: kInvalidArgument for bytes that are not a key of this version.
  static Result<RemoteRegion> Parse(std::span<const std::byte> bytes);
};

}  // namespace ferry::transfer
