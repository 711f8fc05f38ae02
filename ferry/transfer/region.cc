// Names rights, and encodes and parses the keys of regions.
#include "ferry/transfer/region.h"

#include <fmt/core.h>

#include "ferry/core/bytes.h"
#include "ferry/transfer/handshake/wire.h"

namespace ferry::transfer {
namespace {

constexpr std::uint32_t kKeyMagic = 0x59454B46;  // the bytes "FKEY"
constexpr std::uint8_t kMinSliceLog2 = 12;
constexpr std::uint8_t kMaxSliceLog2 = 32;
static_assert(std::uint64_t{1} << kMinSliceLog2 == wire::kMinSlice);
constexpr std::size_t kKeyBytes = 4 + 2 + 1 + 1 + 16 + 4 + 4 + 8 + 8 + 1;

}  // namespace

const char* RightsName(Rights rights) noexcept {
  switch (rights) {
    case Rights::kNone: return "neither reading nor writing";
    case Rights::kRead: return "reading only";
    case Rights::kWrite: return "writing only";
    case Rights::kReadWrite: return "reading and writing";
  }
  return "unknown";
}

std::vector<std::byte> RemoteRegion::Serialize() const {
  std::vector<std::byte> bytes(kKeyBytes);
  ByteWriter writer(bytes);
  writer.U32(kKeyMagic);
  writer.U16(wire::kVersion);
  writer.U8(static_cast<std::uint8_t>(rights));
  writer.U8(most_slice_log2);
  writer.Bytes(endpoint.bytes);
  writer.U32(key.region);
  writer.U32(key.generation);
  writer.U64(key.token);
  writer.U64(length);
  writer.U8(gpu);
  return bytes;
}

Result<RemoteRegion> RemoteRegion::Parse(std::span<const std::byte> bytes) {
  RemoteRegion region;
  std::uint32_t magic = 0;
  std::uint16_t version = 0;
  std::uint8_t rights = 0;
  ByteReader reader(bytes);
  reader.U32(magic);
  reader.U16(version);
  reader.U8(rights);
  reader.U8(region.most_slice_log2);
  reader.Copy(region.endpoint.bytes);
  reader.U32(region.key.region);
  reader.U32(region.key.generation);
  reader.U64(region.key.token);
  reader.U64(region.length);
  reader.U8(region.gpu);
  const std::uint8_t slice = region.most_slice_log2;
  const bool sliced = slice == 0 || (slice >= kMinSliceLog2 && slice <= kMaxSliceLog2);
  if (!reader.ok() || bytes.size() != kKeyBytes || magic != kKeyMagic || rights > 3 || !sliced) {
    return Error(Code::kInvalidArgument,
                 fmt::format("these {} bytes are not a region key; pass on Region::key() unchanged",
                             bytes.size()));
  }
  if (version != wire::kVersion) {
    return Error(Code::kInvalidArgument,
                 fmt::format("the region key has version {}, this build reads version {}; use the "
                             "same release on both sides",
                             version, wire::kVersion));
  }
  region.rights = static_cast<Rights>(rights);
  return region;
}

}  // namespace ferry::transfer
