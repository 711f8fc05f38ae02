// The registrations of an endpoint, and the check of every access to them.
#pragma once
#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/fork.h"
#include "ferry/core/loop/gate.h"
#include "ferry/core/random.h"
#include "ferry/core/result.h"
#include "ferry/core/seeded_hash.h"
#include "ferry/transfer/handshake/wire.h"
#include "ferry/transfer/memory/grant_table.h"
#include "ferry/transfer/memory/region_openers.h"
#include "ferry/transfer/region.h"

namespace ferry::transfer {

class Stager;

// The party that asks for access: a connection, the endpoint at its other end, and the lane that is
// added to the region's openers.
struct Accessor {
  const void* connection = nullptr;
  Uuid peer = {};
  std::uint32_t number = kNoConnection;  // the connection's
  std::uint32_t lane = 0;
  OpenedRegions* opened = nullptr;  // the lane's; null: nobody is added
};

// One registration. Shared between the table, the Region handle and whoever is inside the gate.
struct RegionState {
  const ProcessMark made;  // a forked child may not use it
  std::uint32_t id = 0;
  std::uint32_t generation = 0;
  std::uint64_t token = 0;
  bool named = false;           // its key is the token alone
  std::span<std::byte> memory;  // which the CPU cannot touch if there is a stager
  Stager* stager = nullptr;     // of the GPU whose memory it is; null: host memory
  Rights rights = Rights::kNone;
  const void* only_for = nullptr;  // the one connection whose peer may use it; null: any
  GrantTable grants;               // under the table's mutex
  Gate gate;  // held by operations and lanes that touch the memory; closed by Remove
  // When the first call of Deregister began, since the clock's epoch; 0: none has.
  std::atomic<Clock::rep> deregistering_since{0};
  RegionOpeners openers;  // lanes that may be inside, added by Open
};

// The right to touch a region's memory: while a pin lives, Deregister waits.
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
  std::shared_ptr<RegionState> region_;  // keeps the gate until hold_ has left it
  GateHold hold_;
};

// All regions of an endpoint. Any thread.
class RegionTable {
 public:
  static constexpr std::uint32_t kLastGeneration = ~std::uint32_t{0};
  // `used`: the generation that each slot counts from; not 0 in tests only.
  explicit RegionTable(std::uint32_t used = 0) : used_(used) {}

  // With `token`, keys name the region by that alone; the latest region of a token counts. Errors:
  // kInvalidArgument for empty memory.
  // Shared with the caller, who hands it to Remove.
  Result<std::shared_ptr<RegionState>> Add(std::span<std::byte> memory, Rights rights,
                                           const void* only_for = nullptr, Stager* stager = nullptr,
                                           std::optional<std::uint64_t> token = std::nullopt);
  // Closes the region to everybody; those inside leave in their own time. Idempotent.
  void Remove(const std::shared_ptr<RegionState>& region);
  // A key of its own for one peer, whatever the region's rights say of others; unguessable, like
  // every key. Errors: kInvalidArgument for a region that was removed.
  Result<wire::KeyBody> Grant(const std::shared_ptr<RegionState>& region, const Uuid& peer,
                              Rights rights);
  // Takes all that was granted to a peer back: what it begins from now on is refused.
  void Withdraw(const std::shared_ptr<RegionState>& region, const Uuid& peer);
  // Every check of an access but the bounds of its blocks. The lane is among the region's openers
  // before it is let in, so Remove's caller finds it there. Errors: kRefused, saying which check
  // failed.
  Result<RegionPin> Open(const wire::KeyBody& key, Rights wanted, const Accessor& by = {});
  // Whether the region is of this table, and registered.
  bool Has(const RegionState* region) const;
  std::size_t size() const;
  struct Size {
    std::uint64_t regions = 0;
    std::uint64_t bytes = 0;  // of all; what two of them share counts twice
  };
  Size Registered() const;

 private:
  struct Slot {
    std::shared_ptr<RegionState> region;  // null: free
    std::uint32_t generation = 0;         // of the last registration in this slot
  };

  // Errors: kRefused.
  Result<std::shared_ptr<RegionState>> FindLocked(const wire::KeyBody& key) const;
  // The rights to a registered region, by this key. Errors: kRefused.
  static Result<Rights> RightsOf(const RegionState& region, const wire::KeyBody& key,
                                 const Accessor& by);

  const std::uint32_t used_;
  mutable std::shared_mutex mutex_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;  // slots that can be used again
  std::unordered_map<std::uint64_t, std::shared_ptr<RegionState>, SeededHash> named_;  // by token
  std::size_t live_ = 0;     // slots with a region
  std::uint64_t bytes_ = 0;  // of all regions
};

// The error of a remote access: kRefused.
Error BlockOutside(const RegionState& region, std::size_t index, std::uint64_t offset,
                   std::uint64_t length);
// Checks the blocks of a remote access (BlockOnWire[]) against its region and puts their memory
// into `pieces`. Errors: kRefused for a block outside the region, kCorrupt for a list that does not
// add up to `bytes`.
Status PlaceBlocks(const RegionState& region, std::span<const std::byte> blocks,
                   std::uint64_t bytes, std::vector<iovec>* pieces);

}  // namespace ferry::transfer
