// DeviceApi on GPUs: facts, streams, events and queued work.
#include "ferry/cuda/real/real_devices.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <fstream>
#include <utility>

#include "ferry/core/log.h"
#include "ferry/cuda/error.h"
#include "ferry/cuda/real/factory.h"

namespace ferry::cuda::real {
namespace {

std::string FirstWord(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

int NumaNodeOf(const std::string& pci_bus_id) {
  const std::string text = FirstWord("/sys/bus/pci/devices/" + pci_bus_id + "/numa_node");
  if (text.empty() || !std::all_of(text.begin(), text.end(),
                                   [](unsigned char c) { return std::isdigit(c) != 0; })) {
    return -1;
  }
  return std::stoi(text);
}

cudaMemcpyKind NativeKind(CopyKind kind) noexcept {
  switch (kind) {
    case CopyKind::kHostToDevice: return cudaMemcpyHostToDevice;
    case CopyKind::kDeviceToHost: return cudaMemcpyDeviceToHost;
    case CopyKind::kDeviceToDevice: return cudaMemcpyDeviceToDevice;
  }
  return cudaMemcpyDefault;
}

cudaStream_t Native(StreamRef stream) noexcept {
  return static_cast<cudaStream_t>(stream.native());
}

cudaEvent_t Native(const Event& event) noexcept {
  return static_cast<cudaEvent_t>(event.get().native);
}

// Whether even a call without side effects fails.
bool FailsForEver(int ordinal) noexcept {
  const auto scope = ScopedDevice::Enter(ordinal);
  if (!scope) return true;
  const cudaError_t error = cudaStreamQuery(cudaStreamLegacy);
  if (error != cudaSuccess) (void)cudaGetLastError();
  return IsSticky(error);
}

// These are not failures: at process exit the driver unloads before owners in static storage.
bool IsUnloading(cudaError_t error) noexcept {
  return error == cudaErrorCudartUnloading || error == cudaErrorContextIsDestroyed;
}

}  // namespace

Result<std::unique_ptr<RealDevices>> RealDevices::Create() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    int driver = 0;
    // The runtime reports a missing driver as one that is too old.
    if (error == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess &&
        driver == 0) {
      return Error(
          Code::kUnsupported,
          "no NVIDIA driver is installed here (libcuda.so.1 was not found); install one to use "
          "GPUs, or, in a container, start it with GPUs (docker run --gpus all)");
    }
    return CudaError(error, cudaGetErrorName(error), cudaGetErrorString(error),
                     "looking for GPUs (cudaGetDeviceCount)");
  }
  if (count == 0) return CudaError(Fault::kNoDevice, "looking for GPUs (cudaGetDeviceCount)");
  FERRY_TRY_ASSIGN(const Driver* const driver, LoadDriver());
  return std::unique_ptr<RealDevices>(new RealDevices(driver, count));
}

Result<DeviceApi*> CreateDevices() {
  FERRY_TRY_ASSIGN(auto devices, RealDevices::Create());
  return static_cast<DeviceApi*>(devices.release());
}

// ---- failures -----------------------------------------------------------------------------------

// If no device can be found to be lost, the one that reported the error counts as lost.
void RealDevices::NoteFailure(int number, int ordinal) noexcept {
  if (!IsSticky(number)) return;
  // A call for one device may report the loss of another: a copy between them, or a wait for its
  // event.
  bool found = false;
  for (int i = 0; i < count(); ++i) {
    if (!HasContext(i) || !FailsForEver(i)) continue;
    lost_[static_cast<std::size_t>(i)].store(true, std::memory_order_relaxed);
    found = true;
  }
  if (!found) lost_[static_cast<std::size_t>(ordinal)].store(true, std::memory_order_relaxed);
}

// `tried` is called only after a failure: the common case formats no text.
Status RealDevices::Check(cudaError_t error, int ordinal, FunctionRef<std::string()> tried,
                          SourceLoc at) {
  if (error == cudaSuccess) return Ok();
  // Clear the error, or cudaGetLastError() of the next launch would return it.
  (void)cudaGetLastError();
  NoteFailure(error, ordinal);
  return CudaError(error, cudaGetErrorName(error), cudaGetErrorString(error),
                   fmt::format("{} on device {}", tried(), ordinal), at);
}

Status RealDevices::CheckDriver(CUresult result, int ordinal, FunctionRef<std::string()> tried,
                                SourceLoc at) {
  if (result == CUDA_SUCCESS) return Ok();
  NoteFailure(static_cast<int>(result), ordinal);
  return DriverError(driver_, result, fmt::format("{} on device {}", tried(), ordinal), at);
}

// cudaErrorNotReady is an answer and not a failure.
Result<bool> RealDevices::CheckQuery(cudaError_t error, int ordinal, const char* call) {
  if (error == cudaErrorNotReady) {
    (void)cudaGetLastError();
    return false;
  }
  FERRY_TRY(Check(error, ordinal, [call] { return std::string(call); }));
  return true;
}

// The first step of each call: the device exists, is not lost, and is current for this thread.
Result<ScopedDevice> RealDevices::Enter(int ordinal, std::string_view tried) {
  if (ordinal < 0 || ordinal >= count()) return NoSuchDevice(ordinal, count(), tried);
  if (IsLost(ordinal)) return LostDevice(ordinal, tried);
  auto scope = ScopedDevice::Enter(ordinal);
  if (!scope && scope.error().code() == Code::kDeviceLost) {
    lost_[static_cast<std::size_t>(ordinal)].store(true, std::memory_order_relaxed);
  }
  return scope;
}

// ---- facts --------------------------------------------------------------------------------------

Versions RealDevices::versions() const {
  Versions versions;
  (void)cudaDriverGetVersion(&versions.driver_api);
  (void)cudaRuntimeGetVersion(&versions.runtime);
  versions.kernel_module = FirstWord("/sys/module/nvidia/version");
  return versions;
}

Result<DeviceFacts> RealDevices::Describe(int ordinal) {
  if (ordinal < 0 || ordinal >= count()) return NoSuchDevice(ordinal, count(), "describing");
  cudaDeviceProp properties{};
  FERRY_TRY(Check(cudaGetDeviceProperties(&properties, ordinal), ordinal,
                  [] { return std::string("cudaGetDeviceProperties"); }));
  char bus_id[32] = {};
  FERRY_TRY(Check(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, ordinal), ordinal,
                  [] { return std::string("cudaDeviceGetPCIBusId"); }));
  DeviceFacts facts{.ordinal = ordinal,
                    .name = properties.name,
                    .compute_major = properties.major,
                    .compute_minor = properties.minor,
                    .multiprocessors = properties.multiProcessorCount,
                    .copy_engines = properties.asyncEngineCount,
                    .memory_bytes = properties.totalGlobalMem,
                    .pci_bus_id = bus_id,
                    .numa_node = -1};
  // /sys has it in lower case.
  std::transform(facts.pci_bus_id.begin(), facts.pci_bus_id.end(), facts.pci_bus_id.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  facts.numa_node = NumaNodeOf(facts.pci_bus_id);
  return facts;
}

bool RealDevices::IsLost(int ordinal) const noexcept {
  return ordinal >= 0 && ordinal < count() &&
         lost_[static_cast<std::size_t>(ordinal)].load(std::memory_order_relaxed);
}

Result<std::uint64_t> RealDevices::AvailableMemory(int ordinal) {
  constexpr const char* kCall = "cudaMemGetInfo";
  FERRY_TRY_ASSIGN(const ScopedDevice scope, Enter(ordinal, kCall));
  std::size_t available = 0;
  std::size_t total = 0;
  FERRY_TRY(Check(cudaMemGetInfo(&available, &total), ordinal, [] { return std::string(kCall); }));
  return available;
}

// ---- streams and events -------------------------------------------------------------------------

Result<Stream> RealDevices::CreateStream(int ordinal, StreamPriority priority) {
  constexpr const char* kCall = "cudaStreamCreateWithPriority";
  FERRY_TRY_ASSIGN(const ScopedDevice scope, Enter(ordinal, kCall));
  int least = 0;
  int greatest = 0;
  FERRY_TRY(Check(cudaDeviceGetStreamPriorityRange(&least, &greatest), ordinal,
                  [] { return std::string("cudaDeviceGetStreamPriorityRange"); }));
  cudaStream_t stream = nullptr;
  FERRY_TRY(
      // Non-blocking: not ordered with the legacy default stream, which an application may use.
      Check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                         priority == StreamPriority::kHigh ? greatest : least),
            ordinal, [] { return std::string(kCall); }));
  return Stream({.api = this, .native = stream, .ordinal = ordinal});
}

Result<Event> RealDevices::CreateEvent(int ordinal, EventTiming timing) {
  constexpr const char* kCall = "cudaEventCreateWithFlags";
  FERRY_TRY_ASSIGN(const ScopedDevice scope, Enter(ordinal, kCall));
  cudaEvent_t event = nullptr;
  const unsigned flags = timing == EventTiming::kOn ? cudaEventDefault : cudaEventDisableTiming;
  FERRY_TRY(
      Check(cudaEventCreateWithFlags(&event, flags), ordinal, [] { return std::string(kCall); }));
  return Event({.api = this, .native = event, .ordinal = ordinal});
}

Status RealDevices::Record(const Event& event, StreamRef stream) {
  FERRY_TRY_ASSIGN(const ScopedDevice scope, Enter(stream.ordinal(), "cudaEventRecord"));
  return Check(cudaEventRecord(Native(event), Native(stream)), stream.ordinal(), [&] {
    return fmt::format("cudaEventRecord of an event of device {}", event.ordinal());
  });
}

Status RealDevices::WaitFor(StreamRef stream, const Event& event) {
  FERRY_TRY_ASSIGN(const ScopedDevice scope, Enter(stream.ordinal(), "cudaStreamWaitEvent"));
  if (IsLost(event.ordinal())) return LostDevice(event.ordinal(), "cudaStreamWaitEvent");
  return Check(cudaStreamWaitEvent(Native(stream), Native(event), cudaEventWaitDefault),
               stream.ordinal(), [&] {
                 return fmt::format("cudaStreamWaitEvent for an event of device {}",
                                    event.ordinal());
               });
}

Result<bool> RealDevices::Query(const Event& event) {
  constexpr const char* kCall = "cudaEventQuery";
  FERRY_TRY_ASSIGN(const ScopedDevice scope, Enter(event.ordinal(), kCall));
  return CheckQuery(cudaEventQuery(Native(event)), event.ordinal(), kCall);
}

Result<bool> RealDevices::Query(StreamRef stream) {
  constexpr const char* kCall = "cudaStreamQuery";
  FERRY_TRY_ASSIGN(const ScopedDevice scope, Enter(stream.ordinal(), kCall));
  return CheckQuery(cudaStreamQuery(Native(stream)), stream.ordinal(), kCall);
}

Result<std::chrono::nanoseconds> RealDevices::Elapsed(const Event& from, const Event& to) {
  constexpr const char* kCall = "cudaEventElapsedTime";
  FERRY_TRY_ASSIGN(const ScopedDevice scope, Enter(from.ordinal(), kCall));
  float milliseconds = 0;
  FERRY_TRY(Check(cudaEventElapsedTime(&milliseconds, Native(from), Native(to)), from.ordinal(),
                  [] { return std::string(kCall); }));
  return std::chrono::nanoseconds(std::llround(static_cast<double>(milliseconds) * 1e6));
}

// ---- work ---------------------------------------------------------------------------------------

Status RealDevices::Copy(StreamRef stream, CopyKind kind, std::span<const CopyItem> items) {
  FERRY_TRY_ASSIGN(const ScopedDevice scope, Enter(stream.ordinal(), "cudaMemcpyAsync"));
  for (const CopyItem& item : items) {
    FERRY_TRY(
        Check(cudaMemcpyAsync(item.dst, item.src, item.bytes, NativeKind(kind), Native(stream)),
              stream.ordinal(), [&] {
                return fmt::format("cudaMemcpyAsync {} of {} bytes from {} to {}",
                                   CopyKindName(kind), item.bytes, item.src, item.dst);
              }));
  }
  return Ok();
}

Status RealDevices::Launch(StreamRef stream, const Kernel& kernel,
                           std::span<const std::byte> arguments) {
  const int ordinal = stream.ordinal();
  FERRY_TRY_ASSIGN(const ScopedDevice scope, Enter(ordinal, kernel.name));
  if (kernel.launch == nullptr) {
    return Error(
        Code::kUnsupported,
        fmt::format("launching {}: this build has no code for GPUs; build with nvcc", kernel.name));
  }
  Status launched = kernel.launch(stream, arguments.data());
  if (!launched && launched.error().code() == Code::kDeviceLost) {
    // The launcher has returned the error as a Status, without its number; any sticky one will do.
    NoteFailure(cudaErrorLaunchFailure, ordinal);
  }
  return launched;
}

Status RealDevices::WaitForFlag(StreamRef stream, const void* flag, std::uint32_t value) {
  constexpr const char* kCall = "cuStreamWaitValue32";
  FERRY_TRY_ASSIGN(const ScopedDevice scope, Enter(stream.ordinal(), kCall));
  if (driver_.stream_wait_value32 == nullptr) return CudaError(Fault::kNotSupported, kCall);
  return CheckDriver(
      driver_.stream_wait_value32(Native(stream), reinterpret_cast<CUdeviceptr>(flag), value,
                                  CU_STREAM_WAIT_VALUE_GEQ),
      stream.ordinal(), [&] { return fmt::format("{} at {}", kCall, flag); });
}

Status RealDevices::WriteFlag(StreamRef stream, void* flag, std::uint32_t value) {
  constexpr const char* kCall = "cuStreamWriteValue32";
  FERRY_TRY_ASSIGN(const ScopedDevice scope, Enter(stream.ordinal(), kCall));
  if (driver_.stream_write_value32 == nullptr) return CudaError(Fault::kNotSupported, kCall);
  return CheckDriver(
      driver_.stream_write_value32(Native(stream), reinterpret_cast<CUdeviceptr>(flag), value,
                                   CU_STREAM_WRITE_VALUE_DEFAULT),
      stream.ordinal(), [&] { return fmt::format("{} at {}", kCall, flag); });
}

// ---- the end ------------------------------------------------------------------------------------

void RealDevices::Release(Resource resource, const ResourceHandle& handle) noexcept {
  if (resource == Resource::kCurrentDevice) return ScopedDevice::Leave();
  // Resources of a lost device cannot be freed; the process's end frees them.
  if (IsLost(handle.ordinal)) return;
  const auto scope = ScopedDevice::Enter(handle.ordinal);
  if (!scope) return;
  const auto [error, call] = [&]() -> std::pair<cudaError_t, const char*> {
    switch (resource) {
      case Resource::kDeviceMemory: return {cudaFree(handle.native), "cudaFree"};
      case Resource::kPinnedMemory: return {cudaFreeHost(handle.native), "cudaFreeHost"};
      case Resource::kRegistration:
        return {cudaHostUnregister(handle.native), "cudaHostUnregister"};
      case Resource::kImport:
        return {cudaIpcCloseMemHandle(handle.native), "cudaIpcCloseMemHandle"};
      case Resource::kStream:
        return {cudaStreamDestroy(static_cast<cudaStream_t>(handle.native)), "cudaStreamDestroy"};
      case Resource::kEvent:
        return {cudaEventDestroy(static_cast<cudaEvent_t>(handle.native)), "cudaEventDestroy"};
      case Resource::kGraph:
        return {cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(handle.native)),
                "cudaGraphExecDestroy"};
      case Resource::kCurrentDevice: break;  // above
    }
    return {cudaSuccess, ""};
  }();
  if (error == cudaSuccess || IsUnloading(error)) return;
  (void)cudaGetLastError();
  NoteFailure(error, handle.ordinal);
  Log(LogLevel::kWarn, "cuda", "{} of {} on device {} failed: {}", call, handle.native,
      handle.ordinal, cudaGetErrorName(error));
}

}  // namespace ferry::cuda::real
