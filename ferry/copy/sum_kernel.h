// The kernel that copies block lists and sums their bytes.
#pragma once
#include <cstdint>

#include "ferry/copy/block_kernel.h"
#include "ferry/copy/device_executor.h"
#include "ferry/cuda/device_api.h"

namespace ferry {

// Short, so that one slice of 256 KiB is shared by as many warps as can be: each has its whole
// piece in flight at once, and sums it afterwards.
inline constexpr std::uint32_t kSumPiece = 4096;

// Copies blocks as the block kernel does, and adds up what each contributes to the CRC-32C of its
// list (core/crc32c_parts.h).
struct SumKernelArguments {
  // The list of a block is the one in whose range its ordering address is. Ranges don't overlap.
  std::uint64_t starts[kMaxSummed] = {};
  std::uint32_t lengths[kMaxSummed] = {};
  const PackedBlock* blocks = nullptr;  // each of at most kSumPiece bytes
  // kMaxSummed rows of kSumCells, in mapped memory. A warp combines its contributions to list i
  // with a cell of its own in row i.
  std::uint32_t* cells = nullptr;
  std::uint32_t count = 0;
  std::uint32_t groups = 1;  // at most kSumCells / kBlockKernelWarps
  bool by_source = false;    // the ordering address is the source, not the destination
  bool again = false;        // the cells may hold something other than zeros
};

extern const cuda::Kernel kSumKernel;

}  // namespace ferry
