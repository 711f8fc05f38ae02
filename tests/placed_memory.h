// Host or GPU memory that tests fill and check from the host.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/cuda/device_api.h"
#include "ferry/transfer/counters.h"

namespace ferry::tests {

// GPUs that a process of a test uses, by the value of the setting `devices`; none for "none".
// Throws where there are none of those.
cuda::DeviceApi* DevicesOf(const std::string& devices);

// The place of memory that is the host's.
inline constexpr int kOnHost = -1;

// Memory of the host or of a GPU, which is filled and looked at from the host. Nothing else uses it
// while it is. One thread.
class PlacedMemory {
 public:
  // Of the GPU `place` of `devices`, or of the host, for which there may be none.
  PlacedMemory(cuda::DeviceApi* devices, int place, std::size_t bytes);

  bool on_gpu() const noexcept { return devices_ != nullptr; }
  // What is transferred.
  std::span<std::byte> span() noexcept;
  // The first of its bytes.
  void Put(std::span<const std::byte> bytes);
  // Likewise; valid until the next call.
  std::span<const std::byte> Look(std::size_t bytes);
  // Whether nothing was written before or behind it. True for host memory.
  bool GuardsIntact();

 private:
  void Copy(cuda::CopyKind kind, std::size_t at, std::size_t bytes);

  std::vector<std::byte> host_;         // what is transferred, of the host
  cuda::DeviceApi* devices_ = nullptr;  // null for host memory
  cuda::PinnedBuffer mirror_;           // of all of gpu_
  cuda::DeviceBuffer gpu_;              // what is transferred, between guards
  cuda::Stream stream_;
};

// Transfers something on each GPU, so that all is there that CUDA makes at the first use and keeps.
void UseEachGpu(cuda::DeviceApi* devices, const Config& config);
// Bytes of each GPU that nobody has, by ordinal; nothing without GPUs.
std::vector<std::uint64_t> AvailableMemory(cuda::DeviceApi* devices);
// Slots that somebody has or waits for, of all GPUs.
std::uint64_t SlotsInUse(const transfer::EndpointCounters& counters);

}  // namespace ferry::tests
