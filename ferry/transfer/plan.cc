#include "ferry/transfer/plan.h"

#include <fmt/core.h>

#include <limits>
#include <utility>

namespace ferry::transfer {
namespace {

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
                                             std::uint64_t slice_bytes) {
  auto plan = std::make_shared<Plan>();
  plan->direction = direction;
  plan->peer = peer;
  for (PlanPart& part : parts) {
    part.blocks = part.blocks.Merged();
    plan->bytes += part.blocks.total_bytes();
    const auto index = static_cast<std::uint32_t>(plan->parts.size());
    for (const Slice& range : SplitIntoSlices(part.blocks, slice_bytes, wire::kMaxBlocksPerFrame)) {
      plan->slices.push_back({index, range});
    }
    plan->parts.push_back(std::move(part));
  }
  if (plan->slices.size() > std::numeric_limits<std::uint32_t>::max()) {
    return Error(Code::kInvalidArgument,
                 fmt::format("the transfer has {} slices of {} bytes, 2^32 is the most; use larger "
                             "slices or several transfers",
                             plan->slices.size(), slice_bytes));
  }
  return std::shared_ptr<const Plan>(std::move(plan));
}

void AppendSlice(const Plan& plan, std::uint32_t slice, std::vector<std::byte>* meta,
                 std::vector<iovec>* payload) {
  const PlanSlice& cut = plan.slices[slice];
  const PlanPart& part = plan.parts[cut.part];
  wire::WriteBody body;
  body.key = part.remote;
  body.slice = slice;
  body.blocks = static_cast<std::uint32_t>(cut.range.blocks);
  wire::Append(meta, body);
  const bool writing = plan.direction == Direction::kWrite;
  ForEachBlockOfSlice(part.blocks, cut.range, [&](const Block& block) {
    wire::Append(meta, wire::BlockOnWire{writing ? block.dst : block.src, block.len});
    if (payload != nullptr) {
      AddPiece(part.local_base + (writing ? block.src : block.dst), block.len, payload);
    }
  });
}

void LocalPieces(const Plan& plan, std::uint32_t slice, std::vector<iovec>* pieces) {
  const PlanSlice& cut = plan.slices[slice];
  const PlanPart& part = plan.parts[cut.part];
  const bool writing = plan.direction == Direction::kWrite;
  pieces->clear();
  ForEachBlockOfSlice(part.blocks, cut.range, [&](const Block& block) {
    AddPiece(part.local_base + (writing ? block.src : block.dst), block.len, pieces);
  });
}

}  // namespace ferry::transfer
