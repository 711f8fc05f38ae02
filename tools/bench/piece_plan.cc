// Distributes a list's bytes evenly over the warps of a kernel.
#include "tools/bench/piece_plan.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "ferry/core/units.h"

namespace ferry::tools {
namespace {

// A warp moves 4 KiB in one round trip to memory. Pieces above the maximum would only make the
// shares less even; the maximum also bounds the memory of a plan.
constexpr std::uint64_t kShortestPlanned = 4 * kKiB;
constexpr std::uint64_t kLongestPlanned = 16 * kKiB;
constexpr std::uint64_t kMaxPlanned = std::uint64_t{1} << 20;
// Pieces start at the same offset from this alignment as their block, so that all are aligned
// alike.
constexpr std::uint64_t kLine = 128;

std::uint64_t CeilDivide(std::uint64_t value, std::uint64_t by) { return (value + by - 1) / by; }
std::uint64_t RoundUp(std::uint64_t value, std::uint64_t to) { return CeilDivide(value, to) * to; }

// Sorted by destination, which brings together blocks that continue each other.
BlockList Joined(const BlockList& list) {
  std::vector<Block> blocks(list.blocks().begin(), list.blocks().end());
  std::sort(blocks.begin(), blocks.end(),
            [](const Block& a, const Block& b) { return a.dst < b.dst; });
  return BlockList(std::move(blocks)).Merged();
}

// Cuts the blocks into equal pieces.
std::vector<Block> Cut(const BlockList& list, std::uint64_t longest) {
  std::vector<Block> pieces;
  pieces.reserve(list.size() + list.total_bytes() / longest);
  for (const Block& block : list.blocks()) {
    const std::uint64_t each =
        RoundUp(CeilDivide(block.len, CeilDivide(block.len, longest)), kLine);
    for (std::uint64_t at = 0; at < block.len; at += each) {
      pieces.push_back({block.dst + at, block.src + at, std::min(each, block.len - at)});
    }
  }
  return pieces;
}

// Assigns pieces row by row, one per warp, in the order in which the kernel's rounds assign them.
std::vector<PackedBlock> Deal(const std::vector<Block>& pieces, std::uint32_t warps) {
  std::vector<PackedBlock> dealt(pieces.size());
  const std::size_t round = std::size_t{warps} * kWarpBlocks;
  for (std::size_t base = 0; base < pieces.size(); base += round) {
    const auto here = static_cast<std::uint32_t>(std::min(round, pieces.size() - base));
    const std::uint32_t rows = here / warps;  // complete rows; the rest goes to the first few warps
    for (std::uint32_t i = 0; i < here; ++i) {
      const std::uint32_t row = i / warps;
      // Pieces get shorter, so every second row runs in reverse: the warp with the longest piece of
      // a row gets the shortest of the next. The warps with the shortest last pieces get the
      // remaining ones.
      const bool back = row < rows && (rows - row) % 2 == 1;
      const std::uint32_t warp = back ? warps - 1 - i % warps : i % warps;
      dealt[base + ShareOf(warp, warps, here).first + row] = Pack(pieces[base + i]);
    }
  }
  return dealt;
}

}  // namespace

PiecePlan PlanPieces(const BlockList& list, std::uint32_t groups) {
  const BlockList joined = Joined(list);
  const std::uint64_t total = joined.total_bytes();
  const std::uint64_t even =
      RoundUp(CeilDivide(total, std::uint64_t{groups} * kBlockKernelWarps), kLine);
  // At most 2^30, as a descriptor can say, since a list has at most 2^50 bytes.
  const std::uint64_t longest = std::max(std::clamp(even, kShortestPlanned, kLongestPlanned),
                                         RoundUp(CeilDivide(total, kMaxPlanned), kLine));
  std::vector<Block> pieces = Cut(joined, longest);
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const Block& a, const Block& b) { return a.len > b.len; });
  PiecePlan plan;
  plan.groups = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(groups, CeilDivide(pieces.size(), kBlockKernelWarps)));
  plan.pieces = Deal(pieces, plan.groups * kBlockKernelWarps);
  return plan;
}

}  // namespace ferry::tools
