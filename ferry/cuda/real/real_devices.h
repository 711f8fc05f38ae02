// DeviceApi on GPUs through the CUDA runtime.
#pragma once
#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ferry/core/function_ref.h"
#include "ferry/cuda/device_api.h"
#include "ferry/cuda/real/driver.h"
#include "ferry/cuda/real/scoped_device.h"

namespace ferry::cuda::real {

// GPUs through CUDA's runtime, on the devices' primary contexts, so that memory and streams of
// other libraries in the process can be shared. See device_api.h for the contract.
class RealDevices final : public DeviceApi {
 public:
  static Result<std::unique_ptr<RealDevices>> Create();

  int count() const noexcept override { return static_cast<int>(lost_.size()); }
  Versions versions() const override;
  Result<DeviceFacts> Describe(int ordinal) override;
  bool IsLost(int ordinal) const noexcept override;
  Result<std::uint64_t> AvailableMemory(int ordinal) override;

  Result<DeviceBuffer> AllocateDevice(int ordinal, std::size_t bytes) override;
  Result<PinnedBuffer> AllocatePinned(int ordinal, std::size_t bytes) override;
  Result<HostRegistration> RegisterHost(int ordinal, void* data, std::size_t bytes) override;
  Result<void*> MappedAddress(int ordinal, void* host) override;
  Result<PointerInfo> Inspect(const void* address) override;
  Result<CurrentDevice> MakeCurrent(int ordinal) override;
  int Current() const noexcept override;
  Result<bool> CanAccessPeer(int from, int to) override;
  Status EnablePeerAccess(int from, int to) override;
  Result<IpcExport> Export(const void* address) override;
  Result<ImportedBuffer> Import(int ordinal, const IpcExport& exported) override;

  Result<Stream> CreateStream(int ordinal, StreamPriority priority) override;
  Result<Event> CreateEvent(int ordinal, EventTiming timing) override;
  Status Record(const Event& event, StreamRef stream) override;
  Status WaitFor(StreamRef stream, const Event& event) override;
  Result<bool> Query(const Event& event) override;
  Result<bool> Query(StreamRef stream) override;
  Result<std::chrono::nanoseconds> Elapsed(const Event& from, const Event& to) override;

  Status Copy(StreamRef stream, CopyKind kind, std::span<const CopyItem> items) override;
  Status Launch(StreamRef stream, const Kernel& kernel,
                std::span<const std::byte> arguments) override;
  Status BeginCapture(StreamRef stream) override;
  Result<Graph> EndCapture(StreamRef stream) override;
  Status Replay(StreamRef stream, const Graph& graph) override;
  Status WaitForFlag(StreamRef stream, const void* flag, std::uint32_t value) override;
  Status WriteFlag(StreamRef stream, void* flag, std::uint32_t value) override;

 private:
  RealDevices(const Driver* driver, int count)
      : driver_(*driver), lost_(static_cast<std::size_t>(count)) {}

  void Release(Resource resource, const ResourceHandle& handle) noexcept override;

  // Makes the device current while the result lives. Errors: kDeviceLost, kInvalidArgument for an
  // ordinal that does not exist.
  Result<ScopedDevice> Enter(int ordinal, std::string_view tried);
  // Converts the result of a call; calls `tried` only on a failure.
  Status Check(cudaError_t error, int ordinal, FunctionRef<std::string()> tried,
               SourceLoc at = SourceLoc::Current());
  Status CheckDriver(CUresult result, int ordinal, FunctionRef<std::string()> tried,
                     SourceLoc at = SourceLoc::Current());
  void NoteFailure(int number, int ordinal) noexcept;
  // cudaErrorNotReady is not a failure.
  Result<bool> CheckQuery(cudaError_t error, int ordinal, const char* call);
  Status CheckPair(int from, int to, std::string_view tried);

  const Driver& driver_;
  std::vector<std::atomic<bool>> lost_;  // by ordinal
};

}  // namespace ferry::cuda::real
