// Memory and a stream for tests of executors.
#pragma once
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "ferry/copy/device_executor.h"
#include "ferry/core/deadline.h"
#include "ferry/core/result.h"
#include "ferry/core/testing/random_bytes.h"
#include "ferry/cuda/device_api.h"

namespace ferry {

template <class T>
T Must(Result<T> result) {
  EXPECT_TRUE(result) << (result ? "" : result.error().ToString());
  return *std::move(result);
}
inline void Must(const Status& status) { ASSERT_TRUE(status) << status.error().ToString(); }

// A stream of device 0, and memory of either kind that tests fill and look at by way of pinned
// memory.
class CopyBed {
 public:
  struct Memory {
    cuda::PinnedBuffer host;  // the memory itself, or what fills it and is filled by it
    cuda::DeviceBuffer device;
    Place place;
  };

  explicit CopyBed(cuda::DeviceApi* api)
      : api_(api), stream_(Must(api->CreateStream(0, cuda::StreamPriority::kNormal))) {}

  cuda::DeviceApi& api() { return *api_; }
  const cuda::Stream& stream() const { return stream_; }

  Memory Make(std::size_t bytes, bool on_device, std::uint64_t seed) {
    Memory memory;
    memory.host = Must(api_->AllocatePinned(0, bytes));
    memory.place = Must(Place::OnHost(*api_, 0, memory.host.data()));
    FillRandomly(memory.host.bytes(), seed);
    if (on_device) {
      memory.device = Must(api_->AllocateDevice(0, bytes));
      memory.place = Place::OnDevice(memory.device.data());
      Move(cuda::CopyKind::kHostToDevice, memory.device.data(), memory.host.data(), bytes);
    }
    return memory;
  }
  Memory MakeSource(std::size_t bytes, cuda::CopyKind kind) {
    return Make(bytes, kind != cuda::CopyKind::kHostToDevice, 1);
  }
  Memory MakeDestination(std::size_t bytes, cuda::CopyKind kind) {
    return Make(bytes, kind != cuda::CopyKind::kDeviceToHost, 2);
  }

  std::vector<std::byte> Look(Memory* memory) {
    if (memory->device) {
      Move(cuda::CopyKind::kDeviceToHost, memory->host.data(), memory->device.data(),
           memory->host.size());
    }
    const auto bytes = memory->host.bytes();
    return {bytes.begin(), bytes.end()};
  }

  // Until all that is queued on the stream is done.
  void Finish() { Must(api_->Wait(stream_, Deadline::After(std::chrono::seconds(60)))); }

 private:
  void Move(cuda::CopyKind kind, void* dst, const void* src, std::size_t bytes) {
    const cuda::CopyItem item{dst, src, bytes};
    Must(api_->Copy(stream_, kind, {&item, 1}));
    Finish();
  }

  cuda::DeviceApi* const api_;
  const cuda::Stream stream_;
};

}  // namespace ferry
