// Finds the stager for a memory range.
#include "ferry/transfer/gpu/device_memory.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "ferry/core/units.h"
#include "ferry/cuda/address.h"
#include "ferry/cuda/open_devices.h"

namespace ferry::transfer {
namespace {

constexpr std::uint64_t kMinSlots = 8;

}  // namespace

Result<Stager*> DeviceMemory::StagerOf(std::span<const std::byte> memory) {
  // If this process has made no GPU memory there is none; searching for GPUs would be slow.
  if (memory.empty() || !cuda::MayHaveDeviceMemory(config_)) return nullptr;
  // Without GPUs all memory is the host's, so this is not an error here.
  const auto api = cuda::OpenDevices(config_);
  if (!api) return nullptr;
  FERRY_TRY_ASSIGN(const cuda::PointerInfo info, (*api)->Inspect(memory.data()));
  if (info.kind == cuda::MemoryKind::kHost || info.kind == cuda::MemoryKind::kPinned) {
    return nullptr;
  }
  if (info.kind == cuda::MemoryKind::kManaged) {
    return Error(
        Code::kUnsupported,
        fmt::format("the {} at {:#x} are managed memory, which moves between the host and "
                    "GPU {}; use memory of cudaMalloc, or of the host",
                    FormatSize(memory.size()), cuda::AddressOf(memory.data()), info.ordinal));
  }
  // Checked here, because a kernel that reads beyond an allocation loses the device.
  const std::uint64_t offset = cuda::AddressOf(memory.data()) - info.base;
  if (offset > info.bytes || memory.size() > info.bytes - offset) {
    return Error(Code::kInvalidArgument,
                 fmt::format("{} at {:#x} exceed their allocation on GPU {}, which has {} left "
                             "there; check the size",
                             FormatSize(memory.size()), cuda::AddressOf(memory.data()),
                             info.ordinal, FormatSize(info.bytes - std::min(offset, info.bytes))));
  }
  return StagerFor(*api, info.ordinal);
}

Stager* DeviceMemory::Known(int ordinal) {
  const std::lock_guard lock(mutex_);
  const auto it = stagers_.find(ordinal);
  return it == stagers_.end() ? nullptr : it->second.get();
}

Result<Stager*> DeviceMemory::StagerFor(cuda::DeviceApi* api, int ordinal) {
  // One for each GPU of the endpoint, made with its first region and kept: pinning memory is slow.
  // If that fails the next call tries again.
  const std::lock_guard making(making_);
  if (Stager* const known = Known(ordinal); known != nullptr) return known;
  const std::uint64_t slot = std::min(config_.stage_slice_bytes, config_.slice_bytes);
  const std::uint64_t slots = std::max(config_.stage_bytes / slot, kMinSlots);
  FERRY_TRY_ASSIGN(auto stager, Stager::Create(api, ordinal,
                                               {.slot_bytes = slot,
                                                .slots = static_cast<std::uint32_t>(slots),
                                                .by_kernel = true,
                                                .provider = provider_}));
  const std::lock_guard lock(mutex_);
  return (stagers_[ordinal] = std::move(stager)).get();
}

std::vector<StagingCounters> DeviceMemory::Counters() {
  const std::lock_guard lock(mutex_);
  std::vector<StagingCounters> all;
  for (const auto& [ordinal, stager] : stagers_) {
    all.push_back(stager->Counters());
  }
  return all;
}

}  // namespace ferry::transfer
