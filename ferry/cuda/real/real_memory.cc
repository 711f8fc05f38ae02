// DeviceApi on GPUs: memory, peer access and IPC.
#include <fmt/core.h>

#include <cstring>
#include <iterator>

#include "ferry/core/mapping.h"
#include "ferry/cuda/error.h"
#include "ferry/cuda/real/real_devices.h"

// The memory methods of RealDevices.
namespace ferry::cuda::real {
namespace {

// Attributes of one address from cuPointerGetAttributes(); all zero for memory that CUDA does not
// know.
struct Attributes {
  unsigned memory_type = 0;
  unsigned managed = 0;
  unsigned mapped = 0;
  int ordinal = -1;
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  unsigned long long buffer_id = 0;
};

CUresult Ask(const Driver& driver, const void* address, Attributes* answer) {
  CUpointer_attribute names[] = {
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE,      CU_POINTER_ATTRIBUTE_IS_MANAGED,
      CU_POINTER_ATTRIBUTE_MAPPED,           CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
      CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
      CU_POINTER_ATTRIBUTE_BUFFER_ID};
  void* values[] = {&answer->memory_type, &answer->managed, &answer->mapped,   &answer->ordinal,
                    &answer->base,        &answer->bytes,   &answer->buffer_id};
  static_assert(std::size(names) == std::size(values));
  return driver.pointer_get_attributes(static_cast<unsigned>(std::size(names)), names, values,
                                       reinterpret_cast<CUdeviceptr>(address));
}

MemoryKind KindOf(const Attributes& attributes) noexcept {
  if (attributes.managed != 0) return MemoryKind::kManaged;
  return attributes.memory_type == CU_MEMORYTYPE_HOST ? MemoryKind::kPinned : MemoryKind::kDevice;
}

}  // namespace

Result<DeviceBuffer> RealDevices::AllocateDevice(int ordinal, std::size_t bytes) {
  FERRY_TRY_ASSIGN(const ScopedDevice scope, Enter(ordinal, "cudaMalloc"));
  if (bytes == 0) return CudaError(Fault::kInvalidValue, "cudaMalloc of 0 bytes");
  void* at = nullptr;
  FERRY_TRY(Check(cudaMalloc(&at, bytes), ordinal,
                  [&] { return fmt::format("cudaMalloc of {} bytes", bytes); }));
  return DeviceBuffer({.api = this, .native = at, .bytes = bytes, .ordinal = ordinal});
}

Result<PinnedBuffer> RealDevices::AllocatePinned(int ordinal, std::size_t bytes) {
  FERRY_TRY_ASSIGN(const ScopedDevice scope, Enter(ordinal, "cudaHostAlloc"));
  if (bytes == 0) return CudaError(Fault::kInvalidValue, "cudaHostAlloc of 0 bytes");
  void* at = nullptr;
  // Portable: pinned for all devices. Mapped: kernels access it, too.
  FERRY_TRY(Check(cudaHostAlloc(&at, bytes, cudaHostAllocPortable | cudaHostAllocMapped), ordinal,
                  [&] { return fmt::format("cudaHostAlloc of {} bytes", bytes); }));
  return PinnedBuffer({.api = this, .native = at, .bytes = bytes, .ordinal = ordinal});
}

Result<HostRegistration> RealDevices::RegisterHost(int ordinal, void* data, std::size_t bytes) {
  FERRY_TRY_ASSIGN(const ScopedDevice scope, Enter(ordinal, "cudaHostRegister"));
  FERRY_TRY(Check(cudaHostRegister(data, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped),
                  ordinal,
                  [&] { return fmt::format("cudaHostRegister of {} bytes at {}", bytes, data); }));
  return HostRegistration({.api = this, .native = data, .bytes = bytes, .ordinal = ordinal});
}

Result<void*> RealDevices::MappedAddress(int ordinal, void* host) {
  // Not cudaHostGetDevicePointer(), which is documented only for the start of an allocation.
  constexpr const char* kCall = "cuPointerGetAttributes";
  FERRY_TRY_ASSIGN(const ScopedDevice scope, Enter(ordinal, kCall));
  unsigned memory_type = 0;
  CUdeviceptr mapped = 0;
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                 CU_POINTER_ATTRIBUTE_DEVICE_POINTER};
  void* values[] = {&memory_type, &mapped};
  FERRY_TRY(
      CheckDriver(driver_.pointer_get_attributes(static_cast<unsigned>(std::size(names)), names,
                                                 values, reinterpret_cast<CUdeviceptr>(host)),
                  ordinal, [&] { return fmt::format("{} of {}", kCall, host); }));
  if (memory_type != CU_MEMORYTYPE_HOST || mapped == 0) {
    return CudaError(
        Fault::kInvalidValue,
        fmt::format("looking for the mapped address of {}, which is not pinned", host));
  }
  return reinterpret_cast<void*>(mapped);
}

Result<PointerInfo> RealDevices::Inspect(const void* address) {
  Attributes attributes;
  const CUresult result = Ask(driver_, address, &attributes);
  // After the loss of a device the driver may fail every call; host memory is still host memory.
  const bool unknown = attributes.memory_type == 0 && attributes.managed == 0;
  if (result != CUDA_SUCCESS && !(IsSticky(static_cast<int>(result)) && IsReadable(address))) {
    return DriverError(driver_, result, fmt::format("cuPointerGetAttributes of {}", address));
  }
  // A freed GPU pointer looks like unknown memory as well; only the kernel can tell whether the CPU
  // may read there (docs/gotchas.md).
  if (result != CUDA_SUCCESS || unknown) {
    if (!IsReadable(address)) return NothingThere(address);
    return PointerInfo{};
  }
  const MemoryKind kind = KindOf(attributes);
  // Reserved addresses without memory (cuMemAddressReserve).
  if (kind == MemoryKind::kDevice && attributes.mapped == 0) return NothingThere(address);
  return PointerInfo{.kind = kind,
                     .ordinal = kind == MemoryKind::kPinned ? -1 : attributes.ordinal,
                     .base = attributes.base,
                     .bytes = attributes.bytes,
                     .allocation = attributes.buffer_id};
}

// ---- peers --------------------------------------------------------------------------------------

Status RealDevices::CheckPair(int from, int to, std::string_view tried) {
  for (const int ordinal : {from, to}) {
    if (ordinal < 0 || ordinal >= count()) return NoSuchDevice(ordinal, count(), tried);
    if (IsLost(ordinal)) return LostDevice(ordinal, tried);
  }
  return Ok();
}

Result<CurrentDevice> RealDevices::MakeCurrent(int ordinal) {
  FERRY_TRY(Enter(ordinal, "cuCtxPushCurrent"));
  FERRY_TRY_ASSIGN(ScopedDevice scope, ScopedDevice::Enter(ordinal));
  scope.Keep();
  return CurrentDevice({.api = this, .ordinal = ordinal});
}

// A device of the driver is the ordinal.
int RealDevices::Current() const noexcept {
  const auto driver = LoadDriver();
  CUdevice device = 0;
  return driver && (*driver)->context_device(&device) == CUDA_SUCCESS ? device : 0;
}

Result<bool> RealDevices::CanAccessPeer(int from, int to) {
  constexpr const char* kCall = "cudaDeviceCanAccessPeer";
  FERRY_TRY(CheckPair(from, to, kCall));
  if (from == to) return false;
  int can = 0;
  FERRY_TRY(Check(cudaDeviceCanAccessPeer(&can, from, to), from,
                  [&] { return fmt::format("{} to device {}", kCall, to); }));
  return can != 0;
}

Status RealDevices::EnablePeerAccess(int from, int to) {
  constexpr const char* kCall = "cudaDeviceEnablePeerAccess";
  FERRY_TRY(CheckPair(from, to, kCall));
  if (from == to) {
    return CudaError(Fault::kPeerAccessUnsupported, fmt::format("{} to itself", kCall));
  }
  // The peer's context must exist.
  FERRY_TRY(Enter(to, kCall));
  FERRY_TRY_ASSIGN(const ScopedDevice scope, Enter(from, kCall));
  const cudaError_t error = cudaDeviceEnablePeerAccess(to, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) {
    (void)cudaGetLastError();
    return Ok();
  }
  return Check(error, from, [&] { return fmt::format("{} to device {}", kCall, to); });
}

// ---- other processes ----------------------------------------------------------------------------

Result<IpcExport> RealDevices::Export(const void* address) {
  constexpr const char* kCall = "cudaIpcGetMemHandle";
  FERRY_TRY_ASSIGN(const PointerInfo info, Inspect(address));
  if (info.kind != MemoryKind::kDevice) {
    return CudaError(Fault::kInvalidValue,
                     fmt::format("{} of {} memory", kCall, MemoryKindName(info.kind)));
  }
  FERRY_TRY_ASSIGN(const DeviceFacts facts, Describe(info.ordinal));
  FERRY_TRY_ASSIGN(const ScopedDevice scope, Enter(info.ordinal, kCall));
  cudaIpcMemHandle_t handle;
  const cudaError_t error = cudaIpcGetMemHandle(&handle, reinterpret_cast<void*>(info.base));
  // Memory of cuMemCreate(), as some allocators use it, cannot be shared by these handles.
  if (error == cudaErrorInvalidValue) {
    (void)cudaGetLastError();
    return CudaError(Fault::kNotSupported,
                     fmt::format("{} of memory that cudaMalloc did not make", kCall));
  }
  FERRY_TRY(Check(error, info.ordinal, [&] { return fmt::format("{} of {}", kCall, address); }));
  IpcExport exported;
  static_assert(sizeof handle == sizeof exported.handle);
  std::memcpy(exported.handle.data(), &handle, sizeof handle);
  exported.offset = reinterpret_cast<std::uint64_t>(address) - info.base;
  exported.bytes = info.bytes;
  exported.pci_bus_id = facts.pci_bus_id;
  return exported;
}

Result<ImportedBuffer> RealDevices::Import(int ordinal, const IpcExport& exported) {
  constexpr const char* kCall = "cudaIpcOpenMemHandle";
  int owner = -1;
  if (cudaDeviceGetByPCIBusId(&owner, exported.pci_bus_id.c_str()) != cudaSuccess) {
    (void)cudaGetLastError();
    return CudaError(Fault::kInvalidDevice,
                     fmt::format("{} on device {} of memory of {}, which is not visible here",
                                 kCall, ordinal, exported.pci_bus_id));
  }
  if (owner != ordinal) {
    FERRY_TRY_ASSIGN(const bool reaches, CanAccessPeer(ordinal, owner));
    if (!reaches) {
      return CudaError(
          Fault::kPeerAccessUnsupported,
          fmt::format("{} on device {} of memory of device {}", kCall, ordinal, owner));
    }
  }
  // Use this device's context and do not create one on the owner, which would cost it hundreds of
  // MB.
  FERRY_TRY_ASSIGN(const ScopedDevice scope, Enter(ordinal, kCall));
  cudaIpcMemHandle_t handle;
  std::memcpy(&handle, exported.handle.data(), sizeof handle);
  void* at = nullptr;
  FERRY_TRY(Check(cudaIpcOpenMemHandle(&at, handle, cudaIpcMemLazyEnablePeerAccess), ordinal,
                  [&] { return fmt::format("{} of {} bytes", kCall, exported.bytes); }));
  return ImportedBuffer({.api = this, .native = at, .bytes = exported.bytes, .ordinal = ordinal});
}

}  // namespace ferry::cuda::real
