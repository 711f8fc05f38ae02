// The executor that copies block lists by a kernel.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ferry/copy/block_kernel.h"
#include "ferry/copy/device_executor.h"
#include "ferry/copy/piece_writer.h"
#include "ferry/copy/sum_kernel.h"
#include "ferry/core/check.h"
#include "ferry/core/crc32c_parts.h"
#include "ferry/core/fork.h"
#include "ferry/core/log.h"
#include "ferry/core/units.h"
#include "ferry/cuda/address.h"
#include "ferry/cuda/device_code.h"
#include "ferry/cuda/open_devices.h"

namespace ferry {
namespace {

// Longer blocks are cut, so that all warps share the work. Over the bus pieces have this size;
// within a GPU, which has many more warps, at least the second size; for long lists they are
// larger, so that this many pieces suffice for the longest block.
constexpr std::uint64_t kHostPiece = 16 * kKiB;
constexpr std::uint64_t kDevicePiece = 32 * kKiB;
constexpr std::uint64_t kMaxPieces = 8192;

// Writing the descriptor of a 4 KiB block takes 1 ns, copying it 2.3 ns (80 over the bus), and a
// launch takes the CPU about 4 us: each launch should copy until the next one is queued.
constexpr std::uint64_t kFirstLaunch = 2048;
constexpr std::uint64_t kLaunchGrowth = 3;

// Thread blocks of a kernel that sums. It needs more of them than one that only copies: each looks
// up 16 words in shared memory for 16 bytes. With this many, writes of 1 GiB between two H100 kept
// 0.95 of their rate without sums.
constexpr std::uint32_t kSumGroups = kSumCells / kBlockKernelWarps;

// Calls in flight, or large parts of calls; Enqueue() waits for the oldest when there are more.
constexpr std::size_t kMaxMarks = 64;
constexpr auto kRoomTimeout = std::chrono::seconds(60);

// Estimated from a few blocks, each of which stands for its neighbours: reading all of a long list
// would take too long.
std::uint64_t EstimateBytes(std::span<const PlacedList> lists) {
  constexpr std::size_t kSamples = 64;
  std::uint64_t bytes = 0;
  for (const PlacedList& list : lists) {
    const std::size_t step = list.blocks.size() / kSamples + 1;
    for (std::size_t i = 0; i < list.blocks.size(); i += step) {
      bytes += list.blocks[i].len * std::min(step, list.blocks.size() - i);
    }
  }
  return bytes;
}

// Descriptors pass through a ring in pinned memory, which the kernels read over the bus. Four
// totals say where they are, freed_ <= marked_ <= launched_ <= written_: those between freed_ and
// launched_ may be read by the GPU at any time, those behind are the CPU's. An event marks when a
// stretch is free again. Calls on different streams share the ring, but one thread makes them at a
// time.
class KernelExecutor final : public SummingExecutor {
 public:
  KernelExecutor(cuda::DeviceApi* api, const KernelExecutorOptions& options,
                 cuda::PinnedBuffer blocks, Place mapped)
      : api_(api),
        options_(options),
        blocks_(std::move(blocks)),
        mapped_(mapped),
        ring_(static_cast<PackedBlock*>(blocks_.data())),
        capacity_(blocks_.size() / sizeof(PackedBlock)) {}

  // The GPU reads the ring until the last launch has ended.
  ~KernelExecutor() override {
    for (; !in_flight_.empty(); in_flight_.pop_front()) {
      (void)api_->Wait(in_flight_.front().end, Deadline::After(kRoomTimeout));
    }
  }

  Status MakeEvents(int ordinal) {
    for (std::size_t i = 0; i < kMaxMarks; ++i) {
      FERRY_TRY_ASSIGN(auto event, api_->CreateEvent(ordinal, cuda::EventTiming::kOff));
      free_.push_back(std::move(event));
    }
    return Ok();
  }

  std::string_view name() const noexcept override { return "kernel"; }

  Status Enqueue(cuda::StreamRef stream, cuda::CopyKind kind,
                 std::span<const PlacedList> lists) override {
    const bool within = kind == cuda::CopyKind::kDeviceToDevice;
    const std::uint64_t least = within ? kDevicePiece : kHostPiece;
    // Rounded up to pages of 4 KiB. Only an estimate: it decides how fine the pieces are, nothing
    // else.
    const std::uint64_t even = (EstimateBytes(lists) / kMaxPieces + 4095) & ~4095ULL;
    return Run({.stream = stream,
                .groups = within ? options_.device_groups : options_.host_groups,
                .piece = std::clamp(even, least, kLongestPacked)},
               lists);
  }

  Status EnqueueSummed(cuda::StreamRef stream, SumOrder order, std::span<const PlacedList> lists,
                       const SumSheet& sheet) override {
    FERRY_CHECK(lists.size() <= kMaxSummed, lists.size());
    std::memset(sheet.cells, 0, lists.size() * kSumCells * sizeof(std::uint32_t));
    SumKernelArguments sums;
    sums.cells = cuda::PointerTo<std::uint32_t>(sheet.mapped);
    sums.by_source = order == SumOrder::kSource;
    for (std::size_t i = 0; i < lists.size(); ++i) {
      std::uint64_t bytes = 0;
      for (const Block& block : lists[i].blocks) bytes += block.len;
      FERRY_CHECK(bytes <= kMaxSummedBytes, bytes);
      sums.starts[i] = (sums.by_source ? lists[i].src : lists[i].dst).mapped;
      sums.lengths[i] = static_cast<std::uint32_t>(bytes);
    }
    return Run({.stream = stream, .groups = kSumGroups, .piece = kSumPiece, .sums = &sums}, lists);
  }

 private:
  struct Call {
    cuda::StreamRef stream;
    std::uint32_t groups;
    std::uint64_t piece;
    SumKernelArguments* sums = nullptr;  // null: without
    std::uint64_t next_launch = 0;       // blocks
  };
  struct Marked {
    cuda::Event end;
    std::uint64_t up_to;  // of launched_
  };

  Status Run(Call call, std::span<const PlacedList> lists) {
    // Discards blocks that a call wrote before it failed without launching them.
    // They are contiguous, since a launch's blocks do not wrap around; so at_ cannot fall below 0.
    at_ -= written_ - launched_;
    written_ = launched_;
    bits_ = 0;
    const Status queued = Queue(&call, lists);
    // Also after an error: the GPU reads what was launched.
    const Status marked = Mark(call.stream);
    return queued ? marked : queued;
  }

  Status Queue(Call* call, std::span<const PlacedList> lists) {
    call->next_launch = std::min(kFirstLaunch, capacity_ / 2);
    limit_ = written_;
    for (const PlacedList& list : lists) {
      PieceWriter writer(list, call->piece);
      while (!writer.done()) {
        if (written_ == limit_) FERRY_TRY(MakeRoom(call));
        PackedBlock* const begin = ring_ + at_;
        const auto wrote =
            static_cast<std::uint64_t>(writer.Write(begin, begin + (limit_ - written_)) - begin);
        FERRY_TRY(writer.Check());
        bits_ |= writer.bits();
        written_ += wrote;
        at_ += wrote;
      }
    }
    return Launch(*call);
  }

  // Blocks are written to the ring as they are read, and launched in growing batches: the GPU
  // starts while the rest of a long list is still being written. Up to limit_ blocks may be written
  // without another check.
  Status MakeRoom(Call* call) {
    FERRY_TRY(Launch(*call));
    if (at_ == capacity_) at_ = 0;  // a launch's blocks must be contiguous
    // Blocks until the GPU has read the oldest stretch. There is a mark to wait for when the ring
    // is full, because Launch() marks every quarter of it.
    while (written_ - freed_ == capacity_) FERRY_TRY(FreeOldest());
    const std::uint64_t room = std::min(capacity_ - (written_ - freed_), capacity_ - at_);
    limit_ = written_ + std::min(room, call->next_launch);
    call->next_launch = std::min(kLaunchGrowth * call->next_launch, capacity_ / 2);
    return Ok();
  }

  Status Launch(const Call& call) {
    if (written_ == launched_) return Ok();
    const auto count = static_cast<std::uint32_t>(written_ - launched_);
    const std::uint64_t at = (at_ - count) * sizeof(PackedBlock);
    const auto* const blocks = cuda::PointerTo<const PackedBlock>(mapped_.mapped + at);
    // A thread block for each 8 blocks at most: more would find nothing to do.
    const std::uint32_t groups = std::min(call.groups, (count - 1) / kBlockKernelWarps + 1);
    const bool words = AreWords(std::exchange(bits_, 0));
    // Before the launch, so that after an error the descriptors are not rewritten while a kernel
    // that did start may still read them.
    launched_ = written_;
    if (call.sums != nullptr) {
      call.sums->blocks = blocks;
      call.sums->count = count;
      call.sums->groups = groups;
      FERRY_TRY(cuda::LaunchKernel(*api_, call.stream, kSumKernel, *call.sums));
      call.sums->again = true;
    } else {
      const BlockKernelArguments arguments{
          .blocks = blocks, .count = count, .groups = groups, .words = words};
      FERRY_TRY(cuda::LaunchKernel(*api_, call.stream, kBlockKernel, arguments));
    }
    // Marks early, so that a call that fills the ring does not wait for all of it.
    return launched_ - marked_ < capacity_ / 4 ? Ok() : Mark(call.stream);
  }

  Status Mark(cuda::StreamRef stream) {
    if (launched_ == marked_) return Ok();
    while (free_.empty()) FERRY_TRY(FreeOldest());
    FERRY_TRY(api_->Record(free_.back(), stream));
    in_flight_.push_back({std::move(free_.back()), launched_});
    free_.pop_back();
    marked_ = launched_;
    return Ok();
  }

  Status FreeOldest() {
    FERRY_TRY(api_->Wait(in_flight_.front().end, Deadline::After(kRoomTimeout)));
    freed_ = in_flight_.front().up_to;
    free_.push_back(std::move(in_flight_.front().end));
    in_flight_.pop_front();
    return Ok();
  }

  cuda::DeviceApi* const api_;
  const KernelExecutorOptions options_;
  const cuda::PinnedBuffer blocks_;
  const Place mapped_;  // mapped address of blocks_
  PackedBlock* const ring_;
  const std::uint64_t capacity_;
  // Totals since creation, in blocks.
  std::uint64_t written_ = 0;
  std::uint64_t launched_ = 0;
  std::uint64_t marked_ = 0;
  std::uint64_t freed_ = 0;
  std::uint64_t at_ = 0;          // ring position of the next block
  std::uint64_t limit_ = 0;       // value of written_ that needs the next MakeRoom()
  std::uint64_t bits_ = 0;        // of the blocks not yet launched, as PieceWriter::bits()
  std::deque<Marked> in_flight_;  // oldest first
  std::vector<cuda::Event> free_;
};

// The devices without kernels that the log has named.
struct WarnedDevices {
  std::mutex mutex;
  std::set<std::pair<cuda::DeviceApi*, int>> devices;  // under mutex
};

// One launch of each kernel, which only loads it.
Status LaunchNothing(cuda::DeviceApi* api, cuda::StreamRef stream) {
  for (const bool words : {false, true}) {
    BlockKernelArguments nothing;
    nothing.words = words;
    FERRY_TRY(cuda::LaunchKernel(*api, stream, kBlockKernel, nothing));
  }
  FERRY_TRY(cuda::LaunchKernel(*api, stream, kSumKernel, SumKernelArguments{}));
  return api->Wait(stream, Deadline::After(kRoomTimeout));
}

}  // namespace

Status LoadCopyKernels(cuda::DeviceApi* api, cuda::StreamRef stream) {
  Status launched = LaunchNothing(api, stream);
  if (launched || launched.error().code() != Code::kUnsupported) return launched;
  FERRY_TRY_ASSIGN(const auto device, api->Describe(stream.ordinal()));
  const std::string targets = cuda::DeviceCodeTargets();
  const std::string target = cuda::TargetFor(device.compute_major, device.compute_minor);
  return Error(
      Code::kUnsupported,
      fmt::format("GPU {} ({}, compute capability {}.{}) cannot run the kernels of this build, "
                  "which has code for {}: {}{}",
                  stream.ordinal(), device.name, device.compute_major, device.compute_minor,
                  targets.empty() ? "no GPU" : targets, launched.error().message(),
                  target.empty()
                      ? "; kernels need compute capability 8.0 or later"
                      : fmt::format(", -DFERRY_CUDA_ARCH={} (CMAKE_CUDA_ARCHITECTURES)", target)));
}

Result<bool> HaveCopyKernels(cuda::DeviceApi* api, cuda::StreamRef stream) {
  const Status loaded = LoadCopyKernels(api, stream);
  if (loaded) return true;
  if (loaded.error().code() != Code::kUnsupported) return loaded.error();
  static PerProcess<WarnedDevices> all;
  WarnedDevices& warned = all.Get();
  const std::lock_guard lock(warned.mutex);
  if (warned.devices.emplace(api, stream.ordinal()).second) {
    Log(LogLevel::kWarn, "copy",
        "copy engines move the data of GPU {}, and the CPU computes its checksums, which is slow "
        "for small blocks: {}",
        stream.ordinal(), loaded.error().message());
  }
  return false;
}

std::uint32_t ReadSum(const SumSheet& sheet, std::size_t list, std::uint64_t bytes) noexcept {
  std::uint32_t parts = 0;
  for (std::size_t i = 0; i < kSumCells; ++i) parts ^= sheet.cells[list * kSumCells + i];
  return Crc32cOfParts(parts, bytes);
}

Result<std::unique_ptr<SummingExecutor>> MakeSummingExecutor(cuda::DeviceApi* api, int ordinal,
                                                             const KernelExecutorOptions& options) {
  KernelExecutorOptions chosen = options;
  if (chosen.device_groups == 0) {
    FERRY_TRY_ASSIGN(const auto facts, api->Describe(ordinal));
    chosen.device_groups = DeviceGroups(facts);
  }
  FERRY_TRY_ASSIGN(auto blocks,
                   api->AllocatePinned(ordinal, chosen.most_blocks * sizeof(PackedBlock)));
  FERRY_TRY_ASSIGN(const Place place, Place::OnHost(*api, ordinal, blocks.data()));
  auto executor = std::make_unique<KernelExecutor>(api, chosen, std::move(blocks), place);
  FERRY_TRY(executor->MakeEvents(ordinal));
  return std::unique_ptr<SummingExecutor>(std::move(executor));
}

Result<std::unique_ptr<DeviceExecutor>> MakeKernelExecutor(cuda::DeviceApi* api, int ordinal,
                                                           const KernelExecutorOptions& options) {
  FERRY_TRY_ASSIGN(auto executor, MakeSummingExecutor(api, ordinal, options));
  return std::unique_ptr<DeviceExecutor>(std::move(executor));
}

}  // namespace ferry
