// Prepared transfers: validated parts, cut into slices.
#pragma once
#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ferry/copy/block_list.h"
#include "ferry/core/random.h"
#include "ferry/core/result.h"
#include "ferry/transfer/handshake/wire.h"
#include "ferry/transfer/memory/region_table.h"
#include "ferry/transfer/path.h"

namespace ferry::transfer {

class Stager;

// Blocks between one local and one remote region.
struct PlanPart {
  std::byte* local_base = nullptr;
  std::shared_ptr<RegionState> local;  // shared with the table; null: a message's own memory
  wire::KeyBody remote;
  Stager* stager = nullptr;                      // null: host memory
  std::uint64_t most_slice = ~std::uint64_t{0};  // slice limit of both sides, in bytes
  // Number under which the peer maps the local memory and copies it; 0: use the lanes.
  std::uint32_t share = 0;
  std::uint8_t remote_gpu = 0;  // number as in a key
  std::string why = {};         // reason for that path
  BlockList blocks = {};        // offsets; dst is remote for a write, local for a read
  SliceList slices = {};        // set by MakePlan, as is the next
  std::uint64_t first_slice = 0;
};

// A slice never spans two parts, because its frame names one region.
struct PlanSlice {
  std::uint32_t part = 0;
  Slice range;
};

// A transfer that was validated and cut once and can be posted many times. Immutable.
struct Plan {
  Direction direction = Direction::kWrite;
  Uuid peer;
  std::vector<PlanPart> parts;
  std::uint64_t slice_count = 0;
  std::uint64_t bytes = 0;
  bool staged = false;  // part of it is GPU memory that uses the lanes
  // GpuSharing::id() of the connection whose shares it uses; 0 if it uses none.
  std::uint64_t shared_with = 0;
  std::uint64_t slice_bytes = 0;  // upper bound of all slices

  PlanSlice slice(std::uint64_t index) const noexcept;  // index < slice_count
};

struct PlanLimits {
  std::uint64_t slice_bytes = 0;
  std::uint64_t lanes = 1;        // that carry the slices
  std::uint64_t shared_with = 0;  // Plan::shared_with
  bool equal = false;             // no small slices: each would leave its lane idle
};

// Merges adjacent blocks and cuts the parts, which must be valid, into slices of at most
// limits.slice_bytes and the part's most_slice. Writes from or to GPU memory begin and end with
// smaller ones, unless limits.equal. Errors: kInvalidArgument for more than 2^32 slices.
Result<std::shared_ptr<const Plan>> MakePlan(Direction direction, const Uuid& peer,
                                             std::vector<PlanPart> parts, const PlanLimits& limits);

// Appends a slice's WriteBody and BlockOnWire[] to `meta`, and its local memory to `payload` unless
// that is null.
void AppendSlice(const Plan& plan, std::uint32_t slice, std::vector<std::byte>* meta,
                 std::vector<iovec>* payload);
// Appends a slice's CopyBody and CopyOnWire[]; the slice's part must have a share.
void AppendCopy(const Plan& plan, std::uint32_t slice, std::vector<std::byte>* meta);
// Sets `pieces` to a slice's local memory.
void LocalPieces(const Plan& plan, std::uint32_t slice, std::vector<iovec>* pieces);
PathReport PathOf(const Plan& plan);
// The part that contains the slice.
inline const PlanPart& PartOf(const Plan& plan, std::uint32_t slice) {
  return plan.parts[plan.slice(slice).part];
}

}  // namespace ferry::transfer
