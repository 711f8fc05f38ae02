// Cuts validated parts into slices and encodes a slice's blocks for the wire.
#include "ferry/transfer/memory/plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "ferry/core/units.h"

namespace ferry::transfer {
namespace {

// The first and the last slices of a write of GPU memory: a socket has something to send, and a GPU
// something to copy, before all of a large slice has come. 64 KiB and 32 KiB were slower, and so
// were reads with other slices than equal ones, which begin with a request for each.
constexpr std::uint64_t kMinStagedSlice = 128 * kKiB;

SliceSizes SizesOf(const PlanPart& part, Direction direction, const PlanLimits& limits) {
  const std::uint64_t most = std::min(limits.slice_bytes, part.most_slice);
  // Only where GPU memory is involved does a part have a limit of its own, which may be larger.
  const bool on_gpu = part.most_slice != PlanPart().most_slice;
  if (direction == Direction::kRead || !on_gpu || limits.equal) {
    return SliceSizes::Equal(most);
  }
  return {.least = std::min(most, kMinStagedSlice), .most = most, .takers = limits.lanes};
}

// Blocks that are scattered at the peer may still be adjacent here: fewer pieces for a system call.
void AddPiece(std::byte* memory, std::uint64_t bytes, std::vector<iovec>* pieces) {
  if (!pieces->empty()) {
    iovec& last = pieces->back();
    if (static_cast<std::byte*>(last.iov_base) + last.iov_len == memory) {
      last.iov_len += bytes;
      return;
    }
  }
  pieces->push_back({memory, bytes});
}

}  // namespace

Result<std::shared_ptr<const Plan>> MakePlan(Direction direction, const Uuid& peer,
                                             std::vector<PlanPart> parts,
                                             const PlanLimits& limits) {
  auto plan = std::make_shared<Plan>();
  plan->direction = direction;
  plan->peer = peer;
  plan->shared_with = limits.shared_with;
  for (PlanPart& part : parts) {
    part.blocks = part.blocks.Merged();
    plan->bytes += part.blocks.total_bytes();
    const bool shared = part.share != 0;
    plan->staged |= part.stager != nullptr && !shared;
    // A shared part travels as a command to copy, whose slices may be long; others have their bytes
    // behind them, and through a GPU's staging slot no more than fits there.
    const SliceSizes sizes =
        shared ? SliceSizes::Equal(wire::kMaxCopyBytes) : SizesOf(part, direction, limits);
    if (!shared) plan->slice_bytes = std::max(plan->slice_bytes, sizes.most);
    const std::size_t most_blocks = shared                          ? wire::kMaxCopiesPerFrame
                                    : direction == Direction::kRead ? wire::kMaxBlocksPerRead
                                                                    : wire::kMaxBlocksPerFrame;
    part.slices = SplitIntoSlices(part.blocks, sizes, most_blocks);
    part.first_slice = plan->slice_count;
    plan->slice_count += part.slices.size();
    plan->parts.push_back(std::move(part));
  }
  if (plan->slice_bytes == 0) plan->slice_bytes = limits.slice_bytes;  // all parts are shared
  if (plan->slice_count > std::numeric_limits<std::uint32_t>::max()) {
    return Error(Code::kInvalidArgument,
                 fmt::format("the transfer has {} slices of {} bytes, the limit is 2^32; use "
                             "larger slices or several transfers",
                             plan->slice_count, limits.slice_bytes));
  }
  return std::shared_ptr<const Plan>(std::move(plan));
}

PlanSlice Plan::slice(std::uint64_t index) const noexcept {
  const auto next = std::upper_bound(parts.begin(), parts.end(), index,
                                     [](std::uint64_t wanted, const PlanPart& part) {
                                       return wanted < part.first_slice + part.slices.size();
                                     });
  return {.part = static_cast<std::uint32_t>(next - parts.begin()),
          .range = next->slices[index - next->first_slice]};
}

void AppendSlice(const Plan& plan, std::uint32_t slice, std::vector<std::byte>* meta,
                 std::vector<iovec>* payload) {
  const PlanSlice cut = plan.slice(slice);
  const PlanPart& part = plan.parts[cut.part];
  wire::WriteBody body;
  body.key = part.remote;
  body.slice = slice;
  body.blocks = static_cast<std::uint32_t>(cut.range.blocks);
  wire::Append(meta, body);
  // A block's destination is remote in a write and local in a read.
  const bool writing = plan.direction == Direction::kWrite;
  ForEachBlockOfSlice(part.blocks, cut.range, [&](const Block& block) {
    wire::Append(meta, wire::BlockOnWire{writing ? block.dst : block.src, block.len});
    if (payload != nullptr) {
      AddPiece(part.local_base + (writing ? block.src : block.dst), block.len, payload);
    }
  });
}

void AppendCopy(const Plan& plan, std::uint32_t slice, std::vector<std::byte>* meta) {
  const PlanSlice cut = plan.slice(slice);
  const PlanPart& part = plan.parts[cut.part];
  const bool writing = plan.direction == Direction::kWrite;
  wire::Append(meta, wire::CopyBody{.key = part.remote,
                                    .slice = slice,
                                    .blocks = static_cast<std::uint32_t>(cut.range.blocks),
                                    .share = part.share,
                                    .into = writing ? 1U : 0U});
  ForEachBlockOfSlice(part.blocks, cut.range, [&](const Block& block) {
    wire::Append(meta, wire::CopyOnWire{.offset = writing ? block.dst : block.src,
                                        .shared = writing ? block.src : block.dst,
                                        .length = block.len});
  });
}

const char* PathName(Path path) noexcept {
  switch (path) {
    case Path::kNetwork: return "network";
    case Path::kGpuCopy: return "gpu-copy";
    case Path::kBoth: return "both";
  }
  return "unknown";
}

PathReport PathOf(const Plan& plan) {
  const auto shared = [](const PlanPart& part) { return part.share != 0; };
  const auto count = std::count_if(plan.parts.begin(), plan.parts.end(), shared);
  PathReport report;
  if (count > 0) {
    report.path =
        static_cast<std::size_t>(count) == plan.parts.size() ? Path::kGpuCopy : Path::kBoth;
  }
  if (!plan.parts.empty()) report.why = plan.parts.front().why;
  return report;
}

void LocalPieces(const Plan& plan, std::uint32_t slice, std::vector<iovec>* pieces) {
  const PlanSlice cut = plan.slice(slice);
  const PlanPart& part = plan.parts[cut.part];
  const bool writing = plan.direction == Direction::kWrite;
  pieces->clear();
  pieces->reserve(cut.range.blocks);
  ForEachBlockOfSlice(part.blocks, cut.range, [&](const Block& block) {
    AddPiece(part.local_base + (writing ? block.src : block.dst), block.len, pieces);
  });
}

}  // namespace ferry::transfer
