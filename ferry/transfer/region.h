#pragma once
#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/gate.h"
#include "ferry/core/random.h"
#include "ferry/core/result.h"
#include "ferry/transfer/wire.h"

namespace ferry::transfer {

// What peers may do to a region. The process's own operations may always use it.
enum class Rights : std::uint8_t { kNone = 0, kRead = 1, kWrite = 2, kReadWrite = 3 };
constexpr bool Includes(Rights have, Rights want) noexcept {
  return (static_cast<unsigned>(have) & static_cast<unsigned>(want)) == static_cast<unsigned>(want);
}
const char* RightsName(Rights rights) noexcept;

// One registration. Shared between the table, the Region handle and whoever is inside the gate.
struct RegionState {
  std::uint32_t id = 0;
  std::uint32_t generation = 0;
  std::uint64_t token = 0;
  std::span<std::byte> memory;
  Rights rights = Rights::kNone;
  const void* only_for = nullptr;  // the one connection whose peer may use it; null: any
  Gate gate;  // held by operations and lanes that touch the memory; closed by Remove
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
  // Errors: kInvalidArgument for empty memory.
  // Shared with the caller, who hands it to Remove.
  Result<std::shared_ptr<RegionState>> Add(std::span<std::byte> memory, Rights rights,
                                           const void* only_for = nullptr);
  // Closes the region to everybody; those inside leave in their own time. Idempotent.
  void Remove(const std::shared_ptr<RegionState>& region);
  // Every check of an access by the peer of connection `by` but the bounds of its blocks. Errors:
  // kRefused, saying which check failed.
  Result<RegionPin> Open(const wire::KeyBody& key, Rights wanted, const void* by = nullptr);
  std::size_t size() const;

 private:
  struct Slot {
    std::shared_ptr<RegionState> region;  // null: free
    std::uint32_t generation = 0;         // of the last registration in this slot
  };

  mutable std::shared_mutex mutex_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
};

// Checks the blocks of a remote access (BlockOnWire[]) against its region and puts their memory
// into `pieces`. Errors: kRefused for a block outside the region, kCorrupt for a list that does not
// add up to `bytes`.
Status PlaceBlocks(const RegionState& region, std::span<const std::byte> blocks,
                   std::uint64_t bytes, std::vector<iovec>* pieces);

// What a peer needs to name a region: travels as opaque bytes by whatever way the user has.
struct RemoteRegion {
  Uuid endpoint;  // the one it belongs to
  wire::KeyBody key;
  Rights rights = Rights::kNone;
  std::uint64_t length = 0;

  std::vector<std::byte> Serialize() const;
  // Errors: kInvalidArgument for bytes that are no key of this version.
  static Result<RemoteRegion> Parse(std::span<const std::byte> bytes);
};

}  // namespace ferry::transfer
