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
  std::vector<cuda::CopyItem> items_;  // kept for its memory
};

}  // namespace

Place Place::OnDevice(const void* address) noexcept {
  const auto at = cuda::AddressOf(address);
  return {at, at};
}

Result<Place> Place::OnHost(cuda::DeviceApi& api, int ordinal, void* address) {
  FERRY_TRY_ASSIGN(const void* mapped, api.MappedAddress(ordinal, address));
  return Place{cuda::AddressOf(address), cuda::AddressOf(mapped)};
}

std::unique_ptr<DeviceExecutor> MakeDmaExecutor(cuda::DeviceApi* api) {
  return std::make_unique<DmaExecutor>(api);
}

}  // namespace ferry
