// Block lists stored once in GPU memory and copied by one launch.
#include "tools/bench/copies/prepared_copy.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "ferry/copy/block_kernel.h"
#include "tools/bench/piece_plan.h"

namespace ferry::tools {
namespace {

constexpr auto kUploadTimeout = std::chrono::seconds(60);
constexpr int kFirstEarly = 9;  // compute capability

// The address range of one side.
struct Range {
  std::uint64_t first = kAddressLimit;
  std::uint64_t end = 0;

  void Add(std::uint64_t at, std::uint64_t bytes) noexcept {
    first = std::min(first, at);
    end = std::max(end, at + bytes);
  }
};

Status CheckShift(const char* side, const Range& range, std::int64_t shift) {
  // A shift below 0 wraps to far beyond the upper end.
  // Checked for the whole range at once: a call must cost the same for one block and for thousands.
  const std::uint64_t first = range.first + static_cast<std::uint64_t>(shift);
  if (first < kAddressLimit && range.end - range.first <= kAddressLimit - first) return Ok();
  return Error(
      Code::kInvalidArgument,
      fmt::format("{} of a prepared copy lie in {:#x}..{:#x}; shifted by {} bytes they would "
                  "leave the address space",
                  side, range.first, range.end, shift));
}

class PreparedKernelCopy final : public PreparedCopy {
 public:
  struct Facts {
    int ordinal = 0;
    std::uint64_t bytes = 0;
    std::uint64_t bits = 0;  // an OR of all addresses and lengths
    Range dst;
    Range src;
  };

  PreparedKernelCopy(cuda::DeviceApi* api, const Facts& facts, cuda::DeviceBuffer pieces,
                     const BlockKernelArguments& arguments)
      : api_(api), facts_(facts), pieces_(std::move(pieces)), arguments_(arguments) {}

  Status Enqueue(cuda::StreamRef stream, std::int64_t dst_shift,
                 std::int64_t src_shift) const override {
    if (stream.ordinal() != facts_.ordinal) {
      return Error(Code::kInvalidArgument,
                   fmt::format("a copy that was prepared for device {} on a stream of device {}; "
                               "prepare it for that one, too",
                               facts_.ordinal, stream.ordinal()));
    }
    FERRY_TRY(CheckShift("destinations", facts_.dst, dst_shift));
    FERRY_TRY(CheckShift("sources", facts_.src, src_shift));
    BlockKernelArguments arguments = arguments_;
    arguments.dst_shift = static_cast<std::uint64_t>(dst_shift);
    arguments.src_shift = static_cast<std::uint64_t>(src_shift);
    // The same list may consist of words with one shift and not with another; a launch decides
    // anew. If all addresses, lengths and shifts are multiples of 16, so are the sums.
    arguments.words = AreWords(facts_.bits | arguments.dst_shift | arguments.src_shift);
    return cuda::LaunchKernel(*api_, stream, kBlockKernel, arguments);
  }

  std::uint64_t bytes() const noexcept override { return facts_.bytes; }
  std::size_t pieces() const noexcept override { return arguments_.count; }

 private:
  cuda::DeviceApi* const api_;
  const Facts facts_;
  const cuda::DeviceBuffer pieces_;
  const BlockKernelArguments arguments_;
};

// All blocks, with absolute addresses.
BlockList WithAddresses(std::span<const PlacedList> lists) {
  BlockList all;
  for (const PlacedList& list : lists) {
    for (const Block& block : list.blocks) {
      all.Add({list.dst.mapped + block.dst, list.src.mapped + block.src, block.len});
    }
  }
  return all;
}

// Waits for the copy. A launch with `early` may read the list before the previous kernel has ended,
// so the list must be complete before any launch.
Result<cuda::DeviceBuffer> Upload(cuda::DeviceApi* api, int ordinal,
                                  std::span<const PackedBlock> pieces) {
  FERRY_TRY_ASSIGN(auto buffer, api->AllocateDevice(ordinal, pieces.size_bytes()));
  FERRY_TRY_ASSIGN(const auto staging, api->AllocatePinned(ordinal, pieces.size_bytes()));
  std::memcpy(staging.data(), pieces.data(), pieces.size_bytes());
  FERRY_TRY_ASSIGN(const auto stream, api->CreateStream(ordinal, cuda::StreamPriority::kHigh));
  const cuda::CopyItem item{buffer.data(), staging.data(), pieces.size_bytes()};
  FERRY_TRY(api->Copy(stream, cuda::CopyKind::kHostToDevice, {&item, 1}));
  FERRY_TRY(api->Wait(stream, Deadline::After(kUploadTimeout)));
  return buffer;
}

}  // namespace

Result<std::unique_ptr<PreparedCopy>> PrepareCopy(cuda::DeviceApi* api, int ordinal,
                                                  cuda::CopyKind kind,
                                                  std::span<const PlacedList> lists,
                                                  const PrepareOptions& options) {
  FERRY_TRY_ASSIGN(const auto device, api->Describe(ordinal));
  const BlockList all = WithAddresses(lists);
  FERRY_TRY(all.Validate(kAddressLimit, kAddressLimit));
  std::uint32_t groups = options.groups;
  if (groups == 0) {
    const bool within = kind == cuda::CopyKind::kDeviceToDevice;
    groups = within ? DeviceGroups(device) : KernelExecutorOptions().host_groups;
  }
  const PiecePlan plan = PlanPieces(all, groups);
  if (plan.pieces.size() > std::numeric_limits<std::uint32_t>::max()) {
    return Error(Code::kInvalidArgument,
                 fmt::format("a copy of {} pieces; prepare it in parts", plan.pieces.size()));
  }
  PreparedKernelCopy::Facts facts;
  facts.ordinal = ordinal;
  facts.bytes = all.total_bytes();
  for (const Block& block : all.blocks()) {
    facts.bits |= block.dst | block.src | block.len;
    facts.dst.Add(block.dst, block.len);
    facts.src.Add(block.src, block.len);
  }
  FERRY_TRY_ASSIGN(auto pieces, Upload(api, ordinal, plan.pieces));
  BlockKernelArguments arguments;
  arguments.blocks = static_cast<const PackedBlock*>(pieces.data());
  arguments.count = static_cast<std::uint32_t>(plan.pieces.size());
  arguments.groups = plan.groups;
  arguments.early = options.early && device.compute_major >= kFirstEarly;
  return std::unique_ptr<PreparedCopy>(
      std::make_unique<PreparedKernelCopy>(api, facts, std::move(pieces), arguments));
}

}  // namespace ferry::tools
