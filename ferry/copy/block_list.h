// Block lists: the description of everything that moves.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ferry/core/check.h"
#include "ferry/core/result.h"

namespace ferry {

// `len` bytes from `src` to `dst`: offsets into a source and a destination space, or addresses.
struct Block {
  std::uint64_t dst = 0;
  std::uint64_t src = 0;
  std::uint64_t len = 0;
  friend bool operator==(const Block&, const Block&) = default;
};

// Describes everything that moves: blocks in the order in which they were added, which is their
// order on the network. Unchecked until Validate() has accepted it; a list from a peer must be
// validated before any other use. Concurrent reads are safe; changes are not.
class BlockList {
 public:
  BlockList() = default;
  explicit BlockList(std::vector<Block> blocks);

  // Block i moves page src_pages[i] to page dst_pages[i]; page p starts at byte p * page_bytes.
  // Errors: kInvalidArgument for spans of different sizes, pages of no bytes, and pages that end
  // beyond 64 bits.
  static Result<BlockList> FromPages(std::span<const std::uint64_t> dst_pages,
                                     std::span<const std::uint64_t> src_pages,
                                     std::uint64_t page_bytes);

  void Add(const Block& block) {
    blocks_.push_back(block);
    Count(block);
  }
  void Reserve(std::size_t blocks) { blocks_.reserve(blocks); }
  void Clear() noexcept {
    blocks_.clear();
    total_bytes_ = 0;
  }

  std::size_t size() const noexcept { return blocks_.size(); }
  bool empty() const noexcept { return blocks_.empty(); }
  const Block& operator[](std::size_t index) const noexcept { return blocks_[index]; }
  // Valid until the list changes.
  std::span<const Block> blocks() const noexcept { return blocks_; }
  // The sum of all lengths; saturates at 2^64 - 1.
  std::uint64_t total_bytes() const noexcept { return total_bytes_; }

  // Checks that the list can be copied between a destination and a source of these sizes in bytes:
  // at least one block, no empty block, all within bounds, and no byte of the destination written
  // twice. Bytes of the source may be read twice. For addresses, pass 2^64 - 1. Errors:
  // kInvalidArgument naming the first faulty block, or the two blocks. O(n) for blocks in order of
  // destination, otherwise O(n log n) time and 16 n bytes.
  Status Validate(std::uint64_t dst_size, std::uint64_t src_size) const;

  // The same bytes in the same order, with each block joined to the previous one where it continues
  // both its destination and its source. The list must be validated.
  BlockList Merged() const;

  friend bool operator==(const BlockList& a, const BlockList& b) { return a.blocks_ == b.blocks_; }

 private:
  void Count(const Block& block) noexcept {
    total_bytes_ += block.len;
    if (total_bytes_ < block.len) total_bytes_ = ~std::uint64_t{0};
  }

  std::vector<Block> blocks_;
  std::uint64_t total_bytes_ = 0;
};

// A range of bytes of a block list: starts `offset` bytes into block `first_block` and covers
// `bytes` bytes in `blocks` blocks, of which the first and the last may be partial.
struct Slice {
  std::uint64_t first_block = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t blocks = 0;
  friend bool operator==(const Slice&, const Slice&) = default;
};

// Sizes of the slices of a list, in bytes. The first slices are small and grow from `least` to
// `most`, so that `takers` lanes begin early; the last ones shrink again, so that the lanes end
// together. With least = most all have one size.
struct SliceSizes {
  std::uint64_t least = 1;
  std::uint64_t most = 1;  // at least `least`
  std::uint64_t takers = 1;

  static SliceSizes Equal(std::uint64_t bytes) { return {.least = bytes, .most = bytes}; }
  // The size of a slice with `before` bytes of the list in front of it and `left` from it on: a
  // multiple of `least`, or `most`.
  std::uint64_t At(std::uint64_t before, std::uint64_t left) const;
};

// The slices of a list, in order. Its memory follows from the number of blocks, not of slices:
// slices of one size that follow one another in a block are kept as one entry.
class SliceList {
 public:
  // Adds `count` > 0 slices, each `slice.bytes` behind the one before it.
  void Add(const Slice& slice, std::uint64_t count = 1);

  std::uint64_t size() const noexcept { return runs_.empty() ? 0 : runs_.back().end; }
  bool empty() const noexcept { return runs_.empty(); }
  Slice operator[](std::uint64_t index) const noexcept;  // index < size()
  std::size_t entries() const noexcept { return runs_.size(); }

 private:
  struct Run {
    std::uint64_t begin;  // index of its first slice
    std::uint64_t end;
    Slice first;
  };
  std::vector<Run> runs_;
};

// Cuts a validated list into slices that cover it exactly, in order. Each slice is as long as
// possible with at most the bytes that `sizes` has for it, and max_blocks blocks, at least 1.
SliceList SplitIntoSlices(const BlockList& list, const SliceSizes& sizes, std::uint64_t max_blocks);
inline SliceList SplitIntoSlices(const BlockList& list, std::uint64_t slice_bytes,
                                 std::uint64_t max_blocks) {
  return SplitIntoSlices(list, SliceSizes::Equal(slice_bytes), max_blocks);
}

// Calls fn(const Block&) for the part of each block that lies in the slice, in order. The slice
// must come from SplitIntoSlices() of this list.
template <class Fn>
void ForEachBlockOfSlice(const BlockList& list, const Slice& slice, Fn&& fn) {
  FERRY_CHECK(slice.first_block <= list.size() && slice.blocks <= list.size() - slice.first_block,
              slice.first_block, slice.blocks, list.size());
  std::uint64_t skip = slice.offset;
  std::uint64_t left = slice.bytes;
  for (std::uint64_t i = slice.first_block; i < slice.first_block + slice.blocks; ++i) {
    const Block& whole = list[i];
    const std::uint64_t len = std::min(whole.len - skip, left);
    fn(Block{.dst = whole.dst + skip, .src = whole.src + skip, .len = len});
    left -= len;
    skip = 0;
  }
}

}  // namespace ferry
