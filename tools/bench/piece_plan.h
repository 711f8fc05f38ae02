// An even distribution of a list's bytes over the warps of a kernel.
#pragma once
#include <cstdint>
#include <vector>

#include "ferry/copy/block_kernel.h"
#include "ferry/copy/block_list.h"

namespace ferry::tools {

// The blocks for a block kernel of `groups` thread blocks, in an order that gives all of its warps
// about the same number of pieces and bytes.
struct PiecePlan {
  std::vector<PackedBlock> pieces;
  std::uint32_t groups = 1;
};

// The list must be validated, with addresses below kAddressLimit and at most 2^50 bytes. Uses at
// most `groups` thread blocks. O(n log n).
PiecePlan PlanPieces(const BlockList& list, std::uint32_t groups);

}  // namespace ferry::tools
