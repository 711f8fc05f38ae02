// Packs block lists for the copy kernel.
#pragma once
#include <cstdint>

#include "ferry/copy/block_kernel.h"
#include "ferry/copy/block_list.h"
#include "ferry/copy/device_executor.h"
#include "ferry/core/result.h"

namespace ferry {

// Packs a list for the kernel, in order, cut into pieces of at most `longest` bytes, which is 1 to
// kLongestPacked. The list must live until done().
class PieceWriter {
 public:
  PieceWriter(const PlacedList& list, std::uint64_t longest) noexcept
      : dst_(list.dst.mapped),
        src_(list.src.mapped),
        longest_(longest),
        next_(list.blocks.data()),
        last_(next_ + list.blocks.size()) {}

  bool done() const noexcept { return next_ == last_; }
  // Continues where the last call ended and writes as many pieces as fit before `end`. Returns the
  // end of the written pieces.
  PackedBlock* Write(PackedBlock* out, const PackedBlock* end) noexcept;
  // An OR of all addresses and lengths written so far.
  std::uint64_t bits() const noexcept { return bits_; }
  // Errors: kInvalidArgument where a written address is outside the address space.
  Status Check() const;

 private:
  const std::uint64_t dst_;
  const std::uint64_t src_;
  const std::uint64_t longest_;
  const Block* next_;
  const Block* const last_;
  std::uint64_t begun_ = 0;  // bytes of *next_ that are written
  std::uint64_t bits_ = 0;
};

}  // namespace ferry
