// A case of `ferry perf`: its operation, sizes, layout and byte patterns.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ferry/copy/block_list.h"
#include "ferry/core/result.h"

namespace ferry::tools {

enum class Op { kWrite, kRead, kSend };
const char* OpName(Op op) noexcept;
// Errors: kInvalidArgument.
Result<Op> ParseOp(std::string_view text);

// The transfer that one row of `ferry perf` measures.
struct PerfCase {
  Op op = Op::kWrite;
  std::uint64_t size = 0;
  std::uint64_t block_size = 0;  // 0: contiguous

  // Bytes of the smallest region for its Layout. The last block may be shorter than its place.
  std::uint64_t RegionBytes() const noexcept;
  // Distance between regions of one side, in bytes; each begins at a page.
  std::uint64_t SlotBytes() const noexcept;
};

// Errors: kInvalidArgument for more blocks than a run should hold lists of.
Status CheckBlocks(const PerfCase& perf_case);

// Where the blocks of a case lie in one side's region: contiguous, or shuffled in places a
// block's length apart, as pages of a pool are, so that no two blocks can be joined. The same way
// for the same seed on every machine.
class Layout {
 public:
  Layout(const PerfCase& perf_case, std::uint64_t seed);

  std::uint64_t blocks() const noexcept { return slots_.size(); }
  std::uint64_t offset(std::uint64_t block) const noexcept { return slots_[block] * block_bytes_; }
  std::uint64_t bytes(std::uint64_t block) const noexcept;
  // Bytes of every block except the last.
  std::uint64_t block_bytes() const noexcept { return block_bytes_; }
  // As PerfCase::RegionBytes().
  std::uint64_t region_bytes() const noexcept { return region_bytes_; }

 private:
  std::uint64_t size_;
  std::uint64_t block_bytes_;
  std::uint64_t region_bytes_;
  std::vector<std::uint64_t> slots_;
};

// Offset of a layout in memory that holds several.
struct LaidOut {
  const Layout& layout;
  std::uint64_t begin = 0;
};
// One entry per block: from its place in `src` to its place in `dst`.
BlockList BlocksBetween(const LaidOut& dst, const LaidOut& src);

// Fills a region's blocks with random bytes that depend on the seed and on the block, not on where
// the block lies.
void FillPattern(std::span<std::byte> region, const Layout& layout, std::uint64_t seed);
// The first word of eight bytes that is not as FillPattern wrote it, if any: its offset among the
// bytes of the case.
std::optional<std::uint64_t> FindWrongByte(std::span<const std::byte> region, const Layout& layout,
                                           std::uint64_t seed);
// Overwrites what earlier transfers left.
void Poison(std::span<std::byte> region);

}  // namespace ferry::tools
