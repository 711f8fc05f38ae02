#pragma once
#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ferry/copy/block_list.h"
#include "ferry/core/random.h"
#include "ferry/core/result.h"
#include "ferry/transfer/region.h"
#include "ferry/transfer/wire.h"

namespace ferry::transfer {

enum class Direction : std::uint8_t { kWrite, kRead };

// Blocks between one local and one remote region.
struct PlanPart {
  std::byte* local_base = nullptr;
  std::shared_ptr<RegionState> local;  // with the table; null for a message's own memory
  wire::KeyBody remote;
  BlockList blocks;  // offsets; dst is remote for a write and local for a read
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
};

// Merges neighbours and cuts the parts, which are valid, into slices of at most `slice_bytes`.
// Errors: kInvalidArgument for more than 2^32 slices.
Result<std::shared_ptr<const Plan>> MakePlan(Direction direction, const Uuid& peer,
                                             std::vector<PlanPart> parts,
                                             std::uint64_t slice_bytes);

// Appends a slice's WriteBody and BlockOnWire[] to `meta`, and its local memory to `payload` (if
// not null).
void AppendSlice(const Plan& plan, std::uint32_t slice, std::vector<std::byte>* meta,
                 std::vector<iovec>* payload);
// Sets `pieces` to a slice's local memory.
void LocalPieces(const Plan& plan, std::uint32_t slice, std::vector<iovec>* pieces);

}  // namespace ferry::transfer
