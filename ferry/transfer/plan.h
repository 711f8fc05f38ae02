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
#include "ferry/transfer/path.h"
#include "ferry/transfer/region_table.h"
#include "ferry/transfer/wire.h"

namespace ferry::transfer {

class Stager;

// Blocks between one local and one remote region.
struct PlanPart {
  std::byte* local_base = nullptr;
  std::shared_ptr<RegionState> local;  // with the table; null for a message's own memory
  wire::KeyBody remote;
  Stager* stager = nullptr;                      // null: host memory
  std::uint64_t most_slice = ~std::uint64_t{0};  // bytes; what either side can stage
  // As what the peer knows the local memory, and copies from and into it; 0: over the lanes.
  std::uint32_t share = 0;
  std::uint8_t remote_gpu = 0;  // as in the key
  std::string why = {};         // that path
  BlockList blocks = {};        // offsets; dst is remote for a write and local for a read
};

// A slice never crosses a part: its frame names one region.
struct PlanSlice {
  std::uint32_t part = 0;
  Slice range;
};

// A transfer that was checked and cut up once and can be posted many times. Constant once made.
struct Plan {
  Direction direction = Direction::kWrite;
  Uuid peer;
  std::vector<PlanPart> parts;
  std::vector<PlanSlice> slices;
  std::uint64_t bytes = 0;
  bool staged = false;  // some of it is in GPU memory, and goes over the lanes
  // Where some of it does not: GpuSharing::id() of whose shares those are; else 0.
  std::uint64_t shared_with = 0;
  std::uint64_t slice_bytes = 0;  // that no slice exceeds
};

// Merges neighbours and cuts the parts, which are valid, into slices of at most `slice_bytes`, and
// most_slice of the part.
// Errors: kInvalidArgument for more than 2^32 slices.
Result<std::shared_ptr<const Plan>> MakePlan(Direction direction, const Uuid& peer,
                                             std::vector<PlanPart> parts, std::uint64_t slice_bytes,
                                             std::uint64_t shared_with = 0);

// Appends a slice's WriteBody and BlockOnWire[] to `meta`, and its local memory to `payload` (if
// not null).
void AppendSlice(const Plan& plan, std::uint32_t slice, std::vector<std::byte>* meta,
                 std::vector<iovec>* payload);
// Appends a slice's CopyBody and CopyOnWire[]; of a part with a share.
void AppendCopy(const Plan& plan, std::uint32_t slice, std::vector<std::byte>* meta);
// Sets `pieces` to a slice's local memory.
void LocalPieces(const Plan& plan, std::uint32_t slice, std::vector<iovec>* pieces);
PathReport PathOf(const Plan& plan);
// The part that a slice is of.
inline const PlanPart& PartOf(const Plan& plan, std::uint32_t slice) {
  return plan.parts[plan.slices[slice].part];
}

}  // namespace ferry::transfer
