// The executors that use the GPU's copy engines.
#include <algorithm>
#include <utility>
#include <vector>

#include "ferry/copy/device_executor.h"
#include "ferry/cuda/address.h"

namespace ferry {
namespace {

class DmaExecutor final : public DeviceExecutor {
 public:
  explicit DmaExecutor(cuda::DeviceApi* api) : api_(api) {}

  std::string_view name() const noexcept override { return "dma"; }

  Status Enqueue(cuda::StreamRef stream, cuda::CopyKind kind,
                 std::span<const PlacedList> lists) override {
    items_.clear();
    for (const PlacedList& list : lists) Append(list);
    return api_->Copy(stream, kind, items_);
  }

 private:
  void Append(const PlacedList& list) {
    Block run;
    for (const Block& block : list.blocks) {
      // Adjacent blocks become one copy: the copy engine has a cost for each
      // (docs/architecture.md).
      if (block.dst == run.dst + run.len && block.src == run.src + run.len) {
        run.len += block.len;
        continue;
      }
      AppendRun(list, run);
      run = block;
    }
    AppendRun(list, run);
  }
  void AppendRun(const PlacedList& list, const Block& run) {
    if (run.len == 0) return;
    items_.push_back({.dst = cuda::PointerTo(list.dst.address + run.dst),
                      .src = cuda::PointerTo<const void>(list.src.address + run.src),
                      .bytes = run.len});
  }

  cuda::DeviceApi* const api_;
  std::vector<cuda::CopyItem> items_;  // reused, to keep its memory
};

constexpr std::size_t kHostSlotBytes = std::size_t{1} << 20;

// Copies within a GPU by way of pinned host memory: the reference for the other executors. Batches
// of up to a slot: all copies down, then all copies up.
class ThroughHostExecutor final : public DeviceExecutor {
 public:
  ThroughHostExecutor(cuda::DeviceApi* api, cuda::PinnedBuffer slot)
      : api_(api), plain_(api), slot_(std::move(slot)) {}

  std::string_view name() const noexcept override { return "host"; }

  Status Enqueue(cuda::StreamRef stream, cuda::CopyKind kind,
                 std::span<const PlacedList> lists) override {
    if (kind != cuda::CopyKind::kDeviceToDevice) return plain_.Enqueue(stream, kind, lists);
    for (const PlacedList& list : lists) {
      for (const Block& block : list.blocks) FERRY_TRY(Append(stream, list, block));
    }
    return Flush(stream);
  }

 private:
  Status Append(cuda::StreamRef stream, const PlacedList& list, Block block) {
    while (block.len > 0) {
      const std::uint64_t bytes = std::min<std::uint64_t>(block.len, kHostSlotBytes - used_);
      void* const here = slot_.bytes().data() + used_;
      down_.push_back({here, cuda::PointerTo<const void>(list.src.address + block.src), bytes});
      up_.push_back({cuda::PointerTo(list.dst.address + block.dst), here, bytes});
      used_ += bytes;
      block = {block.dst + bytes, block.src + bytes, block.len - bytes};
      if (used_ == kHostSlotBytes) FERRY_TRY(Flush(stream));
    }
    return Ok();
  }

  // The stream's order keeps the next fetch from overtaking the copies back.
  Status Flush(cuda::StreamRef stream) {
    const Status down = api_->Copy(stream, cuda::CopyKind::kDeviceToHost, down_);
    Status up = down ? api_->Copy(stream, cuda::CopyKind::kHostToDevice, up_) : down;
    down_.clear();
    up_.clear();
    used_ = 0;
    return up;
  }

  cuda::DeviceApi* const api_;
  DmaExecutor plain_;
  cuda::PinnedBuffer slot_;
  std::size_t used_ = 0;
  std::vector<cuda::CopyItem> down_;
  std::vector<cuda::CopyItem> up_;
};

}  // namespace

Place Place::OnDevice(const void* address) noexcept {
  const auto at = cuda::AddressOf(address);
  return {at, at};
}

Result<Place> Place::OnHost(cuda::DeviceApi& api, int ordinal, void* address) {
  // Registered host memory may have another address for kernels; the copy engine takes the CPU's.
  FERRY_TRY_ASSIGN(const void* mapped, api.MappedAddress(ordinal, address));
  return Place{cuda::AddressOf(address), cuda::AddressOf(mapped)};
}

std::unique_ptr<DeviceExecutor> MakeDmaExecutor(cuda::DeviceApi* api) {
  return std::make_unique<DmaExecutor>(api);
}

Result<std::unique_ptr<DeviceExecutor>> MakeHostExecutor(cuda::DeviceApi* api, int ordinal) {
  FERRY_TRY_ASSIGN(auto slot, api->AllocatePinned(ordinal, kHostSlotBytes));
  return std::unique_ptr<DeviceExecutor>(
      std::make_unique<ThroughHostExecutor>(api, std::move(slot)));
}

}  // namespace ferry
