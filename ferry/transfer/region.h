// Registered memory: the region table, access checks and keys.
#pragma once
#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/fork.h"
#include "ferry/core/gate.h"
#include "ferry/core/random.h"
#include "ferry/core/result.h"
#include "ferry/transfer/grant_table.h"
#include "ferry/transfer/region_openers.h"
#include "ferry/transfer/wire.h"

namespace ferry::transfer {

class Stager;

// Operations that peers may perform on a region. The process's own operations are always allowed.
enum class Rights : std::uint8_t { kNone = 0, kRead = 1, kWrite = 2, kReadWrite = 3 };
constexpr bool Includes(Rights have, Rights want) noexcept {
  return (static_cast<unsigned>(have) & static_cast<unsigned>(want)) == static_cast<unsigned>(want);
}
const char* RightsName(Rights rights) noexcept;

// The party that requests access: a connection, the peer's endpoint, and the lane that is recorded
// as an opener of the region.
struct Accessor {
  const void* connection = nullptr;
  Uuid peer = {};
  std::uint32_t number = kNoConnection;  // number of the connection
  std::uint32_t lane = 0;
  OpenedRegions* opened = nullptr;  // the lane's record; null: record no opener
};

// One registration. Owners: the table, the Region handle and everybody inside the gate.
struct RegionState {
  const ProcessMark made;  // a forked child may not use the region
  std::uint32_t id = 0;
  std::uint32_t generation = 0;
  std::uint64_t token = 0;
  std::span<std::byte> memory;  // not accessible by the CPU if `stager` is set
  Stager* stager = nullptr;     // stager of the GPU that owns it; null: host memory
  Rights rights = Rights::kNone;
  const void* only_for = nullptr;  // the only connection whose peer may use it; null: any
  GrantTable grants;               // under the table's mutex
  Gate gate;              // entered by operations and lanes that touch the memory; Remove closes it
  RegionOpeners openers;  // lanes that may be inside, recorded by Open
};

// The right to touch a region's memory: Deregister blocks while a pin exists.
class RegionPin {
 public:
  RegionPin() = default;
  explicit RegionPin(std::shared_ptr<RegionState> region)
      : region_(std::move(region)), hold_(region_->gate) {}

  explicit operator bool() const noexcept { return static_cast<bool>(hold_); }
  const RegionState* get() const noexcept { return region_.get(); }
  std::span<std::byte> memory() const noexcept { return region_->memory; }
  void Release() {
    hold_ = GateHold();
    region_.reset();
  }

 private:
  std::shared_ptr<RegionState> region_;  // keeps the gate alive until hold_ has left it
  GateHold hold_;
};

// All regions of an endpoint. Any thread.
class RegionTable {
 public:
  // Errors: kInvalidArgument for empty memory. The caller shares ownership and must pass the region
  // to Remove.
  Result<std::shared_ptr<RegionState>> Add(std::span<std::byte> memory, Rights rights,
                                           const void* only_for = nullptr,
                                           Stager* stager = nullptr);
  // Refuses new accesses by anybody; does not wait for those inside. Idempotent.
  void Remove(const std::shared_ptr<RegionState>& region);
  // Makes an unguessable key for one peer, independent of the region's rights for all peers.
  // Errors: kInvalidArgument if the region was removed.
  Result<wire::KeyBody> Grant(const std::shared_ptr<RegionState>& region, const Uuid& peer,
                              Rights rights);
  // Revokes all keys granted to a peer: later accesses are refused.
  void Withdraw(const std::shared_ptr<RegionState>& region, const Uuid& peer);
  // Performs every check of an access except the bounds of its blocks. The lane is recorded as an
  // opener before it is let in, so that Remove's caller finds it. Errors: kRefused, naming the
  // check that failed.
  Result<RegionPin> Open(const wire::KeyBody& key, Rights wanted, const Accessor& by = {});
  // Whether the region belongs to this table and is registered.
  bool Has(const RegionState* region) const;
  std::size_t size() const;
  struct Size {
    std::uint64_t regions = 0;
    std::uint64_t bytes = 0;  // sum; overlaps count twice
  };
  Size Registered() const;

 private:
  struct Slot {
    std::shared_ptr<RegionState> region;  // null: free
    std::uint32_t generation = 0;         // of the latest registration in this slot
  };

  // Rights that the key grants for a registered region. Errors: kRefused.
  static Result<Rights> RightsOf(const RegionState& region, const wire::KeyBody& key,
                                 const Accessor& by);

  mutable std::shared_mutex mutex_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
  std::uint64_t bytes_ = 0;  // sum over all regions
};

// The error for a block of a remote access that lies outside the region (kRefused).
Error BlockOutside(const RegionState& region, std::size_t index, std::uint64_t offset,
                   std::uint64_t length);
// Checks the blocks of a remote access (BlockOnWire[]) against its region and sets `pieces` to
// their memory. Errors: kRefused for a block outside the region, kCorrupt if the lengths do not add
// up to `bytes`.
Status PlaceBlocks(const RegionState& region, std::span<const std::byte> blocks,
                   std::uint64_t bytes, std::vector<iovec>* pieces);

// Data that names a region to a peer. Serialized to opaque bytes that the user passes on by any
// channel.
struct RemoteRegion {
  Uuid endpoint;  // owner
  wire::KeyBody key;
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
