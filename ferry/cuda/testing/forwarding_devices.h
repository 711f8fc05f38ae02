// A DeviceApi that forwards to another one, for tests to override.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "ferry/cuda/device_api.h"

namespace ferry::cuda {

// Forwards to other devices, except where a test overrides a method. The other devices must outlive
// this object.
class ForwardingDevices : public DeviceApi {
 public:
  explicit ForwardingDevices(DeviceApi* inner) : inner_(*inner) {}

  int count() const noexcept override { return inner_.count(); }
  Versions versions() const override { return inner_.versions(); }
  Result<DeviceFacts> Describe(int ordinal) override { return inner_.Describe(ordinal); }
  bool IsLost(int ordinal) const noexcept override { return inner_.IsLost(ordinal); }
  Result<std::uint64_t> AvailableMemory(int ordinal) override {
    return inner_.AvailableMemory(ordinal);
  }
  Result<DeviceBuffer> AllocateDevice(int ordinal, std::size_t bytes) override {
    return inner_.AllocateDevice(ordinal, bytes);
  }
  Result<PinnedBuffer> AllocatePinned(int ordinal, std::size_t bytes) override {
    return inner_.AllocatePinned(ordinal, bytes);
  }
  Result<HostRegistration> RegisterHost(int ordinal, void* data, std::size_t bytes) override {
    return inner_.RegisterHost(ordinal, data, bytes);
  }
  Result<void*> MappedAddress(int ordinal, void* host) override {
    return inner_.MappedAddress(ordinal, host);
  }
  Result<PointerInfo> Inspect(const void* address) override { return inner_.Inspect(address); }
  Result<CurrentDevice> MakeCurrent(int ordinal) override { return inner_.MakeCurrent(ordinal); }
  int Current() const noexcept override { return inner_.Current(); }
  Result<bool> CanAccessPeer(int from, int to) override { return inner_.CanAccessPeer(from, to); }
  Status EnablePeerAccess(int from, int to) override { return inner_.EnablePeerAccess(from, to); }
  Result<IpcExport> Export(const void* address) override { return inner_.Export(address); }
  Result<ImportedBuffer> Import(int ordinal, const IpcExport& exported) override {
    return inner_.Import(ordinal, exported);
  }
  Result<Stream> CreateStream(int ordinal, StreamPriority priority) override {
    return inner_.CreateStream(ordinal, priority);
  }
  Result<Event> CreateEvent(int ordinal, EventTiming timing) override {
    return inner_.CreateEvent(ordinal, timing);
  }
  Status Record(const Event& event, StreamRef stream) override {
    return inner_.Record(event, stream);
  }
  Status WaitFor(StreamRef stream, const Event& event) override {
    return inner_.WaitFor(stream, event);
  }
  Result<bool> Query(const Event& event) override { return inner_.Query(event); }
  Result<bool> Query(StreamRef stream) override { return inner_.Query(stream); }
  Result<std::chrono::nanoseconds> Elapsed(const Event& from, const Event& to) override {
    return inner_.Elapsed(from, to);
  }
  Status Copy(StreamRef stream, CopyKind kind, std::span<const CopyItem> items) override {
    return inner_.Copy(stream, kind, items);
  }
  Status Launch(StreamRef stream, const Kernel& kernel,
                std::span<const std::byte> arguments) override {
    return inner_.Launch(stream, kernel, arguments);
  }
  Status BeginCapture(StreamRef stream) override { return inner_.BeginCapture(stream); }
  Result<Graph> EndCapture(StreamRef stream) override { return inner_.EndCapture(stream); }
  Status Replay(StreamRef stream, const Graph& graph) override {
    return inner_.Replay(stream, graph);
  }
  Status WaitForFlag(StreamRef stream, const void* flag, std::uint32_t value) override {
    return inner_.WaitForFlag(stream, flag, value);
  }
  Status WriteFlag(StreamRef stream, void* flag, std::uint32_t value) override {
    return inner_.WriteFlag(stream, flag, value);
  }

 private:
  // The inner object frees the resources that it created.
  void Release(Resource /*resource*/, const ResourceHandle& /*handle*/) noexcept override {}

  DeviceApi& inner_;
};

}  // namespace ferry::cuda
