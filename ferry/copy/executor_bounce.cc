// The executor that stages runs of blocks in GPU memory.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "ferry/copy/device_executor.h"
#include "ferry/cuda/address.h"

namespace ferry {
namespace {

using cuda::CopyKind;

constexpr auto kEndTimeout = std::chrono::seconds(60);

// A part of GPU memory that a run of blocks passes through.
struct Slot {
  cuda::DeviceBuffer memory;
  cuda::Event full;   // the slot has its data
  cuda::Event empty;  // the data has left the slot
};

// One direction. Each run takes two steps: the first on `ahead`, where it does not wait for the
// second step of the previous run, and the second on the caller's stream.
struct Way {
  std::vector<Slot> slots;
  std::size_t next = 0;
  cuda::Stream ahead;
  cuda::Event begin;  // start of a call
};

// Parts of lists that do not use a slot.
class Parts {
 public:
  void Clear() {
    parts_.clear();
    EndList();
  }
  // The next block must not be joined to the last one.
  void EndList() { joinable_ = false; }
  void Add(const PlacedList& list, std::size_t first, std::size_t count) {
    const auto blocks = list.blocks.subspan(first, count);
    if (joinable_ && parts_.back().blocks.data() + parts_.back().blocks.size() == blocks.data()) {
      auto& last = parts_.back().blocks;
      last = {last.data(), last.size() + count};
    } else {
      parts_.push_back({blocks, list.dst, list.src});
    }
    joinable_ = true;
  }
  std::span<const PlacedList> parts() const { return parts_; }

 private:
  std::vector<PlacedList> parts_;  // reused, to keep its memory
  bool joinable_ = false;
};

class BounceExecutor final : public DeviceExecutor {
 public:
  BounceExecutor(cuda::DeviceApi* api, const BounceExecutorOptions& options)
      : api_(api), options_(options), engine_(MakeDmaExecutor(api)) {}

  // The slots are used until the last run has completed.
  ~BounceExecutor() override {
    for (const Way& way : ways_) {
      if (!way.ahead) continue;
      (void)api_->Wait(way.ahead, Deadline::After(kEndTimeout));
      for (const Slot& slot : way.slots) {
        (void)api_->Wait(slot.empty, Deadline::After(kEndTimeout));
      }
    }
  }

  Status Make(int ordinal) {
    FERRY_TRY_ASSIGN(kernel_, MakeKernelExecutor(api_, ordinal));
    KernelExecutorOptions within;
    within.device_groups = options_.groups;
    FERRY_TRY_ASSIGN(mover_, MakeKernelExecutor(api_, ordinal, within));
    for (Way& way : ways_) {
      FERRY_TRY_ASSIGN(way.begin, api_->CreateEvent(ordinal, cuda::EventTiming::kOff));
      for (std::uint32_t i = 0; i < options_.slots; ++i) {
        Slot slot;
        FERRY_TRY_ASSIGN(slot.memory, api_->AllocateDevice(ordinal, options_.slot_bytes));
        FERRY_TRY_ASSIGN(slot.full, api_->CreateEvent(ordinal, cuda::EventTiming::kOff));
        FERRY_TRY_ASSIGN(slot.empty, api_->CreateEvent(ordinal, cuda::EventTiming::kOff));
        way.slots.push_back(std::move(slot));
      }
      // Its kernels are short, and the bus waits for them.
      FERRY_TRY_ASSIGN(way.ahead, api_->CreateStream(ordinal, cuda::StreamPriority::kHigh));
    }
    return Ok();
  }

  std::string_view name() const noexcept override { return "bounce"; }

  Status Enqueue(cuda::StreamRef stream, CopyKind kind,
                 std::span<const PlacedList> lists) override {
    if (kind == CopyKind::kDeviceToDevice) return kernel_->Enqueue(stream, kind, lists);
    by_kernel_.Clear();
    by_engine_.Clear();
    Call call{stream, kind == CopyKind::kHostToDevice, false};
    for (const PlacedList& list : lists) {
      by_kernel_.EndList();
      by_engine_.EndList();
      FERRY_TRY(Divide(list, &call));
    }
    if (const auto parts = by_engine_.parts(); !parts.empty()) {
      FERRY_TRY(engine_->Enqueue(stream, kind, parts));
    }
    const auto parts = by_kernel_.parts();
    return parts.empty() ? Ok() : kernel_->Enqueue(stream, kind, parts);
  }

 private:
  struct Call {
    cuda::StreamRef stream;
    bool to_device;
    bool begun;  // `ahead` waits for the earlier work of the stream
  };
  // Blocks of a list that are contiguous on the host, in this order.
  struct Run {
    std::size_t first = 0;
    std::size_t count = 0;
    std::uint64_t bytes = 0;
  };

  static std::uint64_t HostSide(const Call& call, const Block& block) {
    return call.to_device ? block.src : block.dst;
  }

  // The copy engine takes them as one copy.
  // The blocks from `first` on that continue each other on both sides.
  static Run JoinedFrom(std::span<const Block> blocks, std::size_t first) {
    Run run{first, 1, blocks[first].len};
    for (; first + run.count < blocks.size(); ++run.count) {
      const Block& next = blocks[first + run.count];
      if (next.dst != blocks[first].dst + run.bytes || next.src != blocks[first].src + run.bytes) {
        break;
      }
      run.bytes += next.len;
    }
    return run;
  }

  // Walks the list once and sorts its blocks into three: long ones for the copy engine as they are,
  // runs that are contiguous on the host for a slot, and what is left, short runs, for the kernel.
  // A run ends at a long block, at a gap on the host, and when the slot is full.
  Status Divide(const PlacedList& list, Call* call) {
    Run run;
    for (std::size_t i = 0; i < list.blocks.size();) {
      const Run joined = JoinedFrom(list.blocks, i);
      i += joined.count;
      const bool by_engine = joined.bytes >= options_.engine_block;
      const bool continues = run.count > 0 &&
                             HostSide(*call, list.blocks[joined.first]) ==
                                 HostSide(*call, list.blocks[run.first]) + run.bytes &&
                             run.bytes + joined.bytes <= options_.slot_bytes;
      if (by_engine || !continues) {
        FERRY_TRY(End(list, run, call));
        run = {i, 0, 0};
      }
      if (by_engine) {
        by_engine_.Add(list, joined.first, joined.count);
        continue;
      }
      if (run.count == 0) run.first = joined.first;
      run.count += joined.count;
      run.bytes += joined.bytes;
    }
    return End(list, run, call);
  }

  Status End(const PlacedList& list, const Run& run, Call* call) {
    if (run.count == 0) return Ok();
    if (run.bytes >= options_.least_run) return Bounce(list, run, call);
    by_kernel_.Add(list, run.first, run.count);
    return Ok();
  }

  Status Bounce(const PlacedList& list, const Run& run, Call* call) {
    Way& way = ways_[call->to_device ? 0 : 1];
    // Once a call, at its first run: `ahead` must not overtake work that the caller has queued
    // before.
    if (!std::exchange(call->begun, true)) {
      FERRY_TRY(api_->Record(way.begin, call->stream));
      FERRY_TRY(api_->WaitFor(way.ahead, way.begin));
    }
    const Slot& slot = way.slots[way.next];
    way.next = (way.next + 1) % way.slots.size();
    // From the host in: copy engine on `ahead`, then kernel on the caller's stream. To the host:
    // kernel on `ahead`, then copy engine on the caller's stream. So the second step, which
    // completes the call, is always ordered by the caller's stream. An event that was never
    // recorded counts as complete.
    FERRY_TRY(api_->WaitFor(way.ahead, slot.empty));
    FERRY_TRY(call->to_device ? CopyRun(way.ahead, list, run, slot, *call)
                              : MoveBlocks(way.ahead, list, run, slot, *call));
    FERRY_TRY(api_->Record(slot.full, way.ahead));
    FERRY_TRY(api_->WaitFor(call->stream, slot.full));
    FERRY_TRY(call->to_device ? MoveBlocks(call->stream, list, run, slot, *call)
                              : CopyRun(call->stream, list, run, slot, *call));
    return api_->Record(slot.empty, call->stream);
  }

  // Copies between the host and the slot.
  Status CopyRun(cuda::StreamRef stream, const PlacedList& list, const Run& run, const Slot& slot,
                 const Call& call) {
    const Block& first = list.blocks[run.first];
    const cuda::CopyItem item =
        call.to_device
            ? cuda::CopyItem{slot.memory.data(),
                             cuda::PointerTo<const void>(list.src.address + first.src), run.bytes}
            : cuda::CopyItem{cuda::PointerTo(list.dst.address + first.dst), slot.memory.data(),
                             run.bytes};
    return api_->Copy(stream, call.to_device ? CopyKind::kHostToDevice : CopyKind::kDeviceToHost,
                      {&item, 1});
  }

  // Copies between the slot and the blocks' places on the GPU.
  Status MoveBlocks(cuda::StreamRef stream, const PlacedList& list, const Run& run,
                    const Slot& slot, const Call& call) {
    PlacedList part = list;
    part.blocks = list.blocks.subspan(run.first, run.count);
    // The blocks' offsets are relative to the list's host memory; the slot takes its place.
    // Modulo 2^64: the first block's offset then leads to the start of the slot.
    Place& host_side = call.to_device ? part.src : part.dst;
    host_side = Place::OnDevice(slot.memory.data()) + -HostSide(call, part.blocks.front());
    return mover_->Enqueue(stream, CopyKind::kDeviceToDevice, {&part, 1});
  }

  cuda::DeviceApi* const api_;
  const BounceExecutorOptions options_;
  std::array<Way, 2> ways_;  // to the device, and from it
  std::unique_ptr<DeviceExecutor> kernel_;
  std::unique_ptr<DeviceExecutor> mover_;
  const std::unique_ptr<DeviceExecutor> engine_;
  Parts by_kernel_;
  Parts by_engine_;
};

}  // namespace

Result<std::unique_ptr<DeviceExecutor>> MakeBounceExecutor(cuda::DeviceApi* api, int ordinal,
                                                           const BounceExecutorOptions& options) {
  if (options.slot_bytes == 0 || options.slots == 0 || options.groups == 0) {
    return Error(
        Code::kInvalidArgument,
        fmt::format("a bounce executor with {} slots of {} bytes and {} thread blocks; each "
                    "must be at least 1",
                    options.slots, options.slot_bytes, options.groups));
  }
  BounceExecutorOptions chosen = options;
  // Whatever does not go to the copy engine must fit into a slot.
  chosen.engine_block = std::min<std::uint64_t>(options.engine_block, options.slot_bytes);
  auto executor = std::make_unique<BounceExecutor>(api, chosen);
  FERRY_TRY(executor->Make(ordinal));
  return std::unique_ptr<DeviceExecutor>(std::move(executor));
}

}  // namespace ferry
