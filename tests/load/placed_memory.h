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

// The GPUs that a test process uses, by the value of the setting `devices`; null for "none". Throws
// if they do not exist.
cuda::DeviceApi* DevicesOf(const std::string& devices);

// The place of memory that is the host's.
inline constexpr int kOnHost = -1;

// Host or GPU memory that the host fills and inspects. No transfer may use it meanwhile. For one
// thread.
class PlacedMemory {
 public:
  // Allocates on GPU `place` of `devices`, or on the host, for which `devices` may be null.
  PlacedMemory(cuda::DeviceApi* devices, int place, std::size_t bytes);

  bool on_gpu() const noexcept { return devices_ != nullptr; }
  // The memory to transfer.
  std::span<std::byte> span() noexcept;
  // The first of its bytes.
  void Put(std::span<const std::byte> bytes);
  // The current bytes, copied from a GPU if necessary; valid until the next call.
  std::span<const std::byte> Look(std::size_t bytes);
  // Whether no byte before or behind it was written. Always true for host memory.
  bool GuardsIntact();

 private:
  void Copy(cuda::CopyKind kind, std::size_t at, std::size_t bytes);

  std::vector<std::byte> host_;         // what is transferred, of the host
  cuda::DeviceApi* devices_ = nullptr;  // null for host memory
  cuda::PinnedBuffer mirror_;           // of all of gpu_
  cuda::DeviceBuffer gpu_;              // what is transferred, between guards
  cuda::Stream stream_;
};

// Copies something on each GPU, so that everything exists that CUDA creates at first use and keeps.
void UseEachGpu(cuda::DeviceApi* devices, const Config& config);
// Bytes of each GPU that nobody has, by ordinal; nothing without GPUs.
std::vector<std::uint64_t> AvailableMemory(cuda::DeviceApi* devices);
// Staging slots in use or waited for, over all GPUs.
std::uint64_t SlotsInUse(const transfer::EndpointCounters& counters);

}  // namespace ferry::tests
