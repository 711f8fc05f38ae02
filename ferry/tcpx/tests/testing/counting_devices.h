// Devices that count what is made on them.
#pragma once
#include <cstddef>

#include "ferry/cuda/testing/forwarding_devices.h"

namespace ferry::tcpx::testing {

// Counts what is made on a device.
class CountingDevices final : public cuda::ForwardingDevices {
 public:
  using ForwardingDevices::ForwardingDevices;
  std::size_t made() const { return made_; }

  Result<cuda::DeviceBuffer> AllocateDevice(int ordinal, std::size_t bytes) override {
    ++made_;
    return ForwardingDevices::AllocateDevice(ordinal, bytes);
  }
  Result<cuda::PinnedBuffer> AllocatePinned(int ordinal, std::size_t bytes) override {
    ++made_;
    return ForwardingDevices::AllocatePinned(ordinal, bytes);
  }
  Result<cuda::HostRegistration> RegisterHost(int ordinal, void* data, std::size_t bytes) override {
    ++made_;
    return ForwardingDevices::RegisterHost(ordinal, data, bytes);
  }
  Result<cuda::Stream> CreateStream(int ordinal, cuda::StreamPriority priority) override {
    ++made_;
    return ForwardingDevices::CreateStream(ordinal, priority);
  }
  Result<cuda::Event> CreateEvent(int ordinal, cuda::EventTiming timing) override {
    ++made_;
    return ForwardingDevices::CreateEvent(ordinal, timing);
  }

 private:
  std::size_t made_ = 0;
};

}  // namespace ferry::tcpx::testing
