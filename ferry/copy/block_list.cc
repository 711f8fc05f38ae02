// Validates, merges and slices block lists.
#include "ferry/copy/block_list.h"

#include <fmt/core.h>

#include <limits>
#include <string>
#include <utility>

namespace ferry {
namespace {

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

Error Invalid(std::string message) { return Error(Code::kInvalidArgument, std::move(message)); }

// One side of a block, with the words for messages.
struct Side {
  const char* verb;
  const char* noun;
  std::uint64_t start;
  std::uint64_t size;
};

Error OutOfBounds(std::size_t index, const Block& block, const Side& side) {
  if (block.len > kMax - side.start) {
    return Invalid(fmt::format(
        "block {} {} {} bytes from byte {} of the {}, which ends beyond 64 bits; correct its "
        "offset or length",
        index, side.verb, block.len, side.start, side.noun));
  }
  return Invalid(
      fmt::format("block {} {} bytes {}..{} of a {} of {} bytes; keep every block inside it", index,
                  side.verb, side.start, side.start + block.len, side.noun, side.size));
}

// Subtracts, since `start + len` could wrap around.
bool Inside(std::uint64_t start, std::uint64_t len, std::uint64_t size) {
  return start <= size && len <= size - start;
}

// Why an empty or out-of-bounds block is rejected.
Error FaultOf(std::size_t index, const Block& block, std::uint64_t dst_size,
              std::uint64_t src_size) {
  if (block.len == 0) {
    return Invalid(
        fmt::format("block {} has a length of 0 bytes; leave empty blocks out of the list", index));
  }
  if (!Inside(block.dst, block.len, dst_size)) {
    return OutOfBounds(index, block, {"writes", "destination", block.dst, dst_size});
  }
  return OutOfBounds(index, block, {"reads", "source", block.src, src_size});
}

Error Overlap(std::span<const Block> blocks, std::size_t a, std::size_t b) {
  const auto [first, second] = std::minmax(a, b);
  const Block& x = blocks[first];
  const Block& y = blocks[second];
  return Invalid(fmt::format(
      "blocks {} and {} both write bytes {}..{} of the destination (block {} writes {}..{}, block "
      "{} writes {}..{}); write each byte once",
      first, second, std::max(x.dst, y.dst), std::min(x.dst + x.len, y.dst + y.len), first, x.dst,
      x.dst + x.len, second, y.dst, y.dst + y.len));
}

// Sorting keys that contain the destination is 1.5 times as fast as sorting indexes.
struct Key {
  std::uint64_t dst;
  std::uint64_t index;
  bool operator<(const Key& other) const noexcept {
    return dst != other.dst ? dst < other.dst : index < other.index;
  }
};

// O(n log n), and run only where the blocks do not ascend. Sums cannot wrap: Inside() has passed.
// Sorted by destination, some two neighbours overlap if any two blocks do, because no block is
// empty.
Status CheckDisjoint(std::span<const Block> blocks) {
  std::vector<Key> keys;
  keys.reserve(blocks.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) keys.push_back({blocks[i].dst, i});
  std::sort(keys.begin(), keys.end());
  for (std::size_t i = 1; i < keys.size(); ++i) {
    const Block& before = blocks[keys[i - 1].index];
    if (before.dst + before.len > keys[i].dst) {
      return Overlap(blocks, keys[i - 1].index, keys[i].index);
    }
  }
  return Ok();
}

// On both sides, so that the merged block is still one copy; lengths may add up to more than 64
// bits where the list has not been validated.
bool Continues(const Block& before, const Block& block) {
  return before.dst + before.len == block.dst && before.src + before.len == block.src &&
         block.len <= kMax - before.len;
}

// Appends blocks to the open slice, and to further ones as each fills up: a slice may begin and end
// within a block.
class SliceCutter {
 public:
  SliceCutter(std::uint64_t total, const SliceSizes& sizes, std::uint64_t max_blocks)
      : left_(total), sizes_(sizes), max_blocks_(max_blocks) {}

  void Append(std::size_t index, std::uint64_t len) {
    for (std::uint64_t offset = 0; offset < len;) {
      if (open_.bytes == limit_ || open_.blocks == max_blocks_) Close();
      offset += open_.bytes == 0 ? Begin(index, offset, len - offset) : Extend(len - offset);
    }
  }
  SliceList Take() {
    Close();
    return std::move(slices_);
  }

 private:
  // Opens a slice; or, where all have one size, cuts as many whole ones as the block has. Returns
  // the bytes that these have.
  std::uint64_t Begin(std::size_t index, std::uint64_t offset, std::uint64_t len) {
    const std::uint64_t whole = sizes_.least == sizes_.most ? len / sizes_.most : 0;
    if (whole > 0) {
      slices_.Add({.first_block = index, .offset = offset, .bytes = sizes_.most, .blocks = 1},
                  whole);
      return Count(whole * sizes_.most);
    }
    limit_ = sizes_.At(cut_, left_);
    open_ = {.first_block = index, .offset = offset, .bytes = 0, .blocks = 0};
    return Extend(len);
  }
  std::uint64_t Extend(std::uint64_t len) {
    const std::uint64_t taken = std::min(len, limit_ - open_.bytes);
    open_.bytes += taken;
    ++open_.blocks;
    return Count(taken);
  }
  std::uint64_t Count(std::uint64_t bytes) {
    cut_ += bytes;
    left_ -= bytes;
    return bytes;
  }
  void Close() {
    if (open_.bytes > 0) slices_.Add(open_);
    open_ = {};
  }

  std::uint64_t cut_ = 0;
  std::uint64_t left_;
  const SliceSizes sizes_;
  const std::uint64_t max_blocks_;
  Slice open_;               // no bytes: none
  std::uint64_t limit_ = 0;  // in bytes, of the open slice
  SliceList slices_;
};

}  // namespace

BlockList::BlockList(std::vector<Block> blocks) : blocks_(std::move(blocks)) {
  for (const Block& block : blocks_) Count(block);
}

Result<BlockList> BlockList::FromPages(std::span<const std::uint64_t> dst_pages,
                                       std::span<const std::uint64_t> src_pages,
                                       std::uint64_t page_bytes) {
  if (dst_pages.size() != src_pages.size()) {
    return Invalid(
        fmt::format("{} destination pages cannot pair with {} source pages; give as many "
                    "of one as of the other",
                    dst_pages.size(), src_pages.size()));
  }
  if (page_bytes == 0) return Invalid("pages of 0 bytes hold nothing; give the size of a page");
  // One division here instead of an overflow check for each page.
  const std::uint64_t pages_in_64_bits = kMax / page_bytes;
  BlockList list;
  list.Reserve(dst_pages.size());
  for (std::size_t i = 0; i < dst_pages.size(); ++i) {
    const std::uint64_t last = std::max(dst_pages[i], src_pages[i]);
    if (last >= pages_in_64_bits) {
      return Invalid(
          fmt::format("entry {} names page {}, and with {} bytes to a page that ends "
                      "beyond 64 bits; correct the page number",
                      i, last, page_bytes));
    }
    list.Add({dst_pages[i] * page_bytes, src_pages[i] * page_bytes, page_bytes});
  }
  return list;
}

Status BlockList::Validate(std::uint64_t dst_size, std::uint64_t src_size) const {
  if (blocks_.empty()) return Invalid("the list has no blocks; add at least one");
  // The common list ascends by destination, which proves without sorting that nothing overlaps.
  bool ordered = true;
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const Block& block = blocks_[i];
    if (block.len == 0 || !Inside(block.dst, block.len, dst_size) ||
        !Inside(block.src, block.len, src_size)) {
      return FaultOf(i, block, dst_size, src_size);
    }
    ordered = ordered && block.dst >= end;
    end = block.dst + block.len;
  }
  return ordered ? Ok() : CheckDisjoint(blocks_);
}

BlockList BlockList::Merged() const {
  BlockList merged;
  merged.blocks_.reserve(blocks_.size());
  merged.total_bytes_ = total_bytes_;
  for (const Block& block : blocks_) {
    if (!merged.empty() && Continues(merged.blocks_.back(), block)) {
      merged.blocks_.back().len += block.len;
    } else {
      merged.blocks_.push_back(block);
    }
  }
  return merged;
}

// The size doubles after a round of the takers. At the end each of them has two slices left.
std::uint64_t SliceSizes::At(std::uint64_t before, std::uint64_t left) const {
  const std::uint64_t grown = std::min(before / takers, kMax / 2) * 2;
  const std::uint64_t shrunk = left / takers / 2;
  const std::uint64_t bytes = std::clamp(std::min(grown, shrunk), least, most);
  return bytes == most ? most : bytes - bytes % least;
}

void SliceList::Add(const Slice& slice, std::uint64_t count) {
  const std::uint64_t before = size();
  if (!runs_.empty() && slice.blocks == 1) {
    Run& last = runs_.back();
    const Slice& first = last.first;
    const bool continues = first.blocks == 1 && first.first_block == slice.first_block &&
                           first.bytes == slice.bytes &&
                           slice.offset - first.offset == (last.end - last.begin) * slice.bytes;
    if (continues) {
      last.end += count;
      return;
    }
  }
  runs_.push_back({.begin = before, .end = before + count, .first = slice});
}

Slice SliceList::operator[](std::uint64_t index) const noexcept {
  const auto run = std::upper_bound(
      runs_.begin(), runs_.end(), index,
      [](std::uint64_t wanted, const Run& candidate) { return wanted < candidate.end; });
  Slice slice = run->first;
  slice.offset += (index - run->begin) * slice.bytes;
  return slice;
}

SliceList SplitIntoSlices(const BlockList& list, const SliceSizes& sizes,
                          std::uint64_t max_blocks) {
  FERRY_CHECK(sizes.least > 0 && sizes.takers > 0 && sizes.least <= sizes.most && max_blocks > 0,
              sizes.least, sizes.most, sizes.takers, max_blocks);
  SliceCutter cutter(list.total_bytes(), sizes, max_blocks);
  for (std::size_t i = 0; i < list.size(); ++i) cutter.Append(i, list[i].len);
  return cutter.Take();
}

}  // namespace ferry
