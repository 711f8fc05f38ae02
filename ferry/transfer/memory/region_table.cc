// Registers memory, grants access to it, and checks each remote access.
#include "ferry/transfer/memory/region_table.h"

#include <fmt/format.h>

#include <mutex>

namespace ferry::transfer {

Result<std::shared_ptr<RegionState>> RegionTable::Add(std::span<std::byte> memory, Rights rights,
                                                      const void* only_for, Stager* stager,
                                                      std::optional<std::uint64_t> token) {
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
  // Outside of the mutex, since the kernel is asked for it.
  region->token = token ? *token : RandomU64();
  region->named = token.has_value();
  const std::unique_lock lock(mutex_);
  if (free_.empty()) {
    free_.push_back(static_cast<std::uint32_t>(slots_.size()));
    slots_.push_back({.region = nullptr, .generation = used_});
  }
  region->id = free_.back();
  free_.pop_back();
  Slot& slot = slots_[region->id];
  // Counts the uses of a slot, from 1 on: a key of an earlier use is recognised as stale, and one
  // of generation 0 never existed.
  region->generation = ++slot.generation;
  slot.region = region;
  if (region->named) named_[region->token] = region;
  ++live_;
  bytes_ += memory.size();
  return region;
}

void RegionTable::Remove(const std::shared_ptr<RegionState>& region) {
  {
    const std::unique_lock lock(mutex_);
    Slot& slot = slots_[region->id];
    if (slot.region == region) {
      slot.region.reset();
      const auto named = named_.find(region->token);
      if (named != named_.end() && named->second == region) named_.erase(named);
      --live_;
      // A generation does not come again: an old key could name the new region. The slot is retired
      // instead, 24 bytes for 4 billion registrations.
      if (slot.generation != kLastGeneration) free_.push_back(region->id);
      bytes_ -= region->memory.size();
    }
  }
  // After the table has forgotten the region, so nobody enters the gate between the two.
  region->gate.Close();
}

Result<wire::KeyBody> RegionTable::Grant(const std::shared_ptr<RegionState>& region,
                                         const Uuid& peer, Rights rights) {
  std::uint64_t token = RandomU64();  // not under the mutex: the kernel is asked for it
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

Result<Rights> RegionTable::RightsOf(const RegionState& region, const wire::KeyBody& key,
                                     const Accessor& by) {
  if (key.token == region.token) {
    if (region.only_for == nullptr || region.only_for == by.connection) return region.rights;
    return Error(Code::kRefused,
                 fmt::format("region {} was opened for another connection; use its key on the "
                             "connection that it came from",
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

Result<std::shared_ptr<RegionState>> RegionTable::FindLocked(const wire::KeyBody& key) const {
  if (key.region == kNamedByToken && key.generation == kNamedByToken) {
    const auto named = named_.find(key.token);
    if (named != named_.end()) return named->second;
    return Error(Code::kRefused,
                 "the key names memory that is not registered; ask the peer for a fresh key");
  }
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
  return slot.region;
}

// In this order: does the slot exist, is the key's generation the present one, is the token right,
// are the rights enough; then the lane is recorded as an opener, and the gate is entered. All under
// the shared lock, so that Remove() comes before, and the key is stale, or after, and finds the
// opener.
Result<RegionPin> RegionTable::Open(const wire::KeyBody& key, Rights wanted, const Accessor& by) {
  const std::shared_lock lock(mutex_);
  FERRY_TRY_ASSIGN(std::shared_ptr<RegionState> region, FindLocked(key));
  FERRY_TRY_ASSIGN(const Rights rights, RightsOf(*region, key, by));
  if (!Includes(rights, wanted)) {
    return Error(Code::kRefused,
                 fmt::format("region {} allows peers {}, not {}; register it with that right",
                             region->id, RightsName(rights), RightsName(wanted)));
  }
  // `opened` is the lane's own memory of where it has been recorded, so that most accesses touch no
  // shared list.
  if (by.opened != nullptr && !by.opened->Add(region->id, region->generation)) {
    region->openers.AddLane(by.number, by.lane);
  }
  RegionPin pin(std::move(region));
  if (!pin) {
    return Error(Code::kRefused, "the region is being deregistered");
  }
  return pin;
}

RegionTable::Size RegionTable::Registered() const {
  const std::shared_lock lock(mutex_);
  return {live_, bytes_};
}

bool RegionTable::Has(const RegionState* region) const {
  const std::shared_lock lock(mutex_);
  return region->id < slots_.size() && slots_[region->id].region.get() == region;
}

std::size_t RegionTable::size() const {
  const std::shared_lock lock(mutex_);
  return live_;
}

Error BlockOutside(const RegionState& region, std::size_t index, std::uint64_t offset,
                   std::uint64_t length) {
  return Error(Code::kRefused,
               fmt::format("block {} covers {} bytes from offset {} of region {}, which has {} "
                           "bytes; check offset and length",
                           index, length, offset, region.id, region.memory.size()));
}

// The blocks come from a peer: each is checked against the region and against what is left of the
// payload, by subtractions that cannot wrap around.
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

}  // namespace ferry::transfer
