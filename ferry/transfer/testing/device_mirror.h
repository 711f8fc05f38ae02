// GPU memory with guard bytes for tests of endpoints.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ferry/core/testing/random_bytes.h"
#include "ferry/cuda/device_api.h"
#include "ferry/transfer/testing/linked_endpoints.h"

namespace ferry::transfer {

// Devices for suites that have endpoints; ferry/cuda/testing/device_target.h has those for other
// suites.
struct DevicesCase {
  const char* name;
  const char* devices;  // value of the setting
};
inline void PrintTo(const DevicesCase& parameter, std::ostream* out) { *out << parameter.devices; }
inline std::string DevicesCaseName(const ::testing::TestParamInfo<DevicesCase>& info) {
  return info.param.name;
}
inline constexpr DevicesCase kSimulatedDevices[] = {
    {"One", "simulated:1"}, {"Two", "simulated:2:5"}, {"NoKernels", "simulated:2:6:no-kernels"}};
inline constexpr DevicesCase kRealDevices = {"Real", "auto"};

// GPU memory with guard bytes on both sides, which the test fills and checks through pinned memory.
class MirroredMemory {
 public:
  MirroredMemory(cuda::DeviceApi* api, int ordinal, std::size_t bytes, unsigned seed)
      : api_(api),
        bytes_(bytes),
        memory_(Must(api->AllocateDevice(ordinal, bytes + 2 * kGuardBytes))),
        mirror_(Must(api->AllocatePinned(ordinal, bytes + 2 * kGuardBytes))),
        stream_(Must(api->CreateStream(ordinal, cuda::StreamPriority::kNormal))) {
    std::memset(mirror_.data(), 0xA5, mirror_.size());
    Fill(RandomBytes(bytes, seed));
  }

  std::span<std::byte> span() const noexcept {
    return {static_cast<std::byte*>(memory_.data()) + kGuardBytes, bytes_};
  }
  void Fill(std::span<const std::byte> bytes) {
    std::memcpy(mirror_.bytes().data() + kGuardBytes, bytes.data(), bytes.size());
    Move(cuda::CopyKind::kHostToDevice, memory_.data(), mirror_.data());
  }
  std::vector<std::byte> Copy() {
    Move(cuda::CopyKind::kDeviceToHost, mirror_.data(), memory_.data());
    return {mirror_.bytes().begin() + kGuardBytes, mirror_.bytes().end() - kGuardBytes};
  }
  // As of the last Copy().
  bool GuardsIntact() const {
    const auto is_guard = [](std::byte byte) { return byte == std::byte{0xA5}; };
    const auto all = mirror_.bytes();
    return std::all_of(all.begin(), all.begin() + kGuardBytes, is_guard) &&
           std::all_of(all.end() - kGuardBytes, all.end(), is_guard);
  }
  // Frees the GPU memory while the test continues.
  void Free() { memory_ = cuda::DeviceBuffer(); }

 private:
  static constexpr std::ptrdiff_t kGuardBytes = 4096;

  void Move(cuda::CopyKind kind, void* dst, const void* src) {
    const cuda::CopyItem item{dst, src, mirror_.size()};
    const Status copied = api_->Copy(stream_, kind, {&item, 1});
    FERRY_CHECK(copied.has_value(), copied ? "" : copied.error().ToString());
    const Status ended = api_->Wait(stream_, Soon());
    FERRY_CHECK(ended.has_value(), ended ? "" : ended.error().ToString());
  }

  cuda::DeviceApi* api_;
  std::size_t bytes_;
  cuda::DeviceBuffer memory_;
  cuda::PinnedBuffer mirror_;
  cuda::Stream stream_;
};

}  // namespace ferry::transfer
