// Registers regions, checks accesses and parses keys.
#include "ferry/transfer/region.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>

#include "ferry/core/bytes.h"

namespace ferry::transfer {
namespace {

constexpr std::uint32_t kKeyMagic = 0x59454B46;  // the bytes "FKEY"
constexpr std::uint8_t kLeastSliceLog2 = 12;
constexpr std::uint8_t kMostSliceLog2 = 32;
static_assert(std::uint64_t{1} << kLeastSliceLog2 == wire::kLeastSlice);
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

// ---- RegionTable --------------------------------------------------------------------------------

// Ids are reused; the generation makes keys of earlier registrations stale.
Result<std::shared_ptr<RegionState>> RegionTable::Add(std::span<std::byte> memory, Rights rights,
                                                      const void* only_for, Stager* stager) {
  if (memory.empty() || memory.data() == nullptr) {
    return Error(Code::kInvalidArgument,
                 fmt::format("cannot register {} bytes at {}: a region needs at least one byte",
                             memory.size(), fmt::ptr(memory.data())));
  }
  auto region = std::make_shared<RegionState>();
  region->memory = memory;
  region->rights = rights;
  region->only_for = only_for;
  region->stager = stager;
  region->token = RandomU64();
  const std::unique_lock lock(mutex_);
  if (free_.empty()) {
    free_.push_back(static_cast<std::uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  region->id = free_.back();
  free_.pop_back();
  Slot& slot = slots_[region->id];
  region->generation = ++slot.generation;
  slot.region = region;
  bytes_ += memory.size();
  return region;
}

// The gate closes outside the mutex; Open() pins under it, so no peer enters afterwards.
void RegionTable::Remove(const std::shared_ptr<RegionState>& region) {
  {
    const std::unique_lock lock(mutex_);
    Slot& slot = slots_[region->id];
    if (slot.region == region) {
      slot.region.reset();
      free_.push_back(region->id);
      bytes_ -= region->memory.size();
    }
  }
  region->gate.Close();
}

Result<wire::KeyBody> RegionTable::Grant(const std::shared_ptr<RegionState>& region,
                                         const Uuid& peer, Rights rights) {
  std::uint64_t token = RandomU64();  // without the mutex: this is a system call
  const std::unique_lock lock(mutex_);
  if (slots_[region->id].region != region) {
    return Error(Code::kInvalidArgument,
                 fmt::format("region {} was deregistered: there is nothing to grant", region->id));
  }
  while (!region->grants.Add({token, peer, rights})) token = RandomU64();
  return wire::KeyBody{region->id, region->generation, token};
}

void RegionTable::Withdraw(const std::shared_ptr<RegionState>& region, const Uuid& peer) {
  const std::unique_lock lock(mutex_);
  region->grants.Withdraw(peer);
}

// The region's own token grants its rights to every peer; a granted token only to its peer.
Result<Rights> RegionTable::RightsOf(const RegionState& region, const wire::KeyBody& key,
                                     const Accessor& by) {
  if (key.token == region.token) {
    if (region.only_for == nullptr || region.only_for == by.connection) return region.rights;
    return Error(Code::kRefused, fmt::format("region {} was opened for another connection; use its "
                                             "key on the connection that it came from",
                                             key.region));
  }
  const RegionGrant* const grant = region.grants.Find(key.token);
  if (grant == nullptr) {
    return Error(Code::kRefused,
                 fmt::format("the key of region {} has a wrong token; use a key that this endpoint "
                             "gave out, unchanged, and that was not withdrawn",
                             key.region));
  }
  if (grant->peer == by.peer) return grant->rights;
  return Error(Code::kRefused,
               fmt::format("the key of region {} was granted to endpoint {}, not to {}; ask the "
                           "region's owner for one of your own",
                           key.region, grant->peer.ToString(), by.peer.ToString()));
}

Result<RegionPin> RegionTable::Open(const wire::KeyBody& key, Rights wanted, const Accessor& by) {
  const std::shared_lock lock(mutex_);
  if (key.region >= slots_.size() || key.generation == 0 ||
      key.generation > slots_[key.region].generation) {
    return Error(Code::kRefused,
                 fmt::format("there is no region {} of generation {} here; use a key that this "
                             "endpoint gave out",
                             key.region, key.generation));
  }
  const Slot& slot = slots_[key.region];
  if (key.generation < slot.generation || !slot.region) {
    return Error(Code::kRefused,
                 fmt::format("the key of region {} is stale: its generation {} was deregistered; "
                             "ask the peer for a fresh key",
                             key.region, key.generation));
  }
  FERRY_TRY_ASSIGN(const Rights rights, RightsOf(*slot.region, key, by));
  if (!Includes(rights, wanted)) {
    return Error(Code::kRefused,
                 fmt::format("region {} allows peers {}, not {}; register it with that right",
                             key.region, RightsName(rights), RightsName(wanted)));
  }
  if (by.opened != nullptr && !by.opened->Add(key.region, key.generation)) {
    slot.region->openers.AddLane(by.number, by.lane);
  }
  RegionPin pin(slot.region);
  if (!pin) {
    return Error(Code::kRefused, fmt::format("region {} is being deregistered", key.region));
  }
  return pin;
}

RegionTable::Size RegionTable::Registered() const {
  const std::shared_lock lock(mutex_);
  return {slots_.size() - free_.size(), bytes_};
}

bool RegionTable::Has(const RegionState* region) const {
  const std::shared_lock lock(mutex_);
  return region->id < slots_.size() && slots_[region->id].region.get() == region;
}

std::size_t RegionTable::size() const {
  const std::shared_lock lock(mutex_);
  return slots_.size() - free_.size();
}

Error BlockOutside(const RegionState& region, std::size_t index, std::uint64_t offset,
                   std::uint64_t length) {
  return Error(Code::kRefused,
               fmt::format("block {} covers {} bytes from offset {} of region {}, which has {} "
                           "bytes; check offset and length",
                           index, length, offset, region.id, region.memory.size()));
}

// Every number comes from the peer: compared without additions that could overflow.
Status PlaceBlocks(const RegionState& region, std::span<const std::byte> blocks,
                   std::uint64_t bytes, std::vector<iovec>* pieces) {
  pieces->clear();
  pieces->reserve(blocks.size() / sizeof(wire::BlockOnWire));
  wire::MetaReader reader(blocks);
  wire::BlockOnWire block;
  std::uint64_t left = bytes;
  while (reader.Read(&block)) {
    const std::uint64_t size = region.memory.size();
    if (block.length == 0 || block.length > left) {
      return Error(Code::kCorrupt,
                   fmt::format("block {} has {} bytes where the frame has {} left; the peer's list "
                               "does not fit its payload",
                               pieces->size(), block.length, left));
    }
    if (block.offset > size || block.length > size - block.offset) {
      return BlockOutside(region, pieces->size(), block.offset, block.length);
    }
    left -= block.length;
    pieces->push_back({region.memory.data() + block.offset, block.length});
  }
  if (left != 0) {
    return Error(Code::kCorrupt,
                 fmt::format("the peer's list is {} bytes shorter than its payload", left));
  }
  return Ok();
}

// ---- RemoteRegion -------------------------------------------------------------------------------

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
  const bool sliced = slice == 0 || (slice >= kLeastSliceLog2 && slice <= kMostSliceLog2);
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
