// The interface to GPUs, real or simulated.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include "ferry/core/deadline.h"
#include "ferry/core/function_ref.h"
#include "ferry/core/result.h"
#include "ferry/cuda/resources.h"

namespace ferry::cuda {

struct DeviceFacts {
  int ordinal = 0;
  std::string name;
  int compute_major = 0;  // compute capability
  int compute_minor = 0;
  int multiprocessors = 0;
  int copy_engines = 0;
  std::uint64_t memory_bytes = 0;
  std::string pci_bus_id;  // "0000:3b:00.0", as under /sys/bus/pci/devices
  int numa_node = -1;      // -1: none or unknown
  // Network cards can access its memory directly. Not where it is simulated, unless that was asked
  // for: the CPU stands for the card then.
  bool network_access = true;
};

// CUDA versions in CUDA's encoding: 13000 is 13.0.
struct Versions {
  int driver_api = 0;         // newest version that the driver supports
  int runtime = 0;            // version that this program was built with
  std::string kernel_module;  // "580.159.04"; empty where unknown
};

enum class MemoryKind : unsigned char { kHost, kPinned, kDevice, kManaged };
const char* MemoryKindName(MemoryKind kind) noexcept;  // "host", "pinned", "device", "managed"

// Facts about an address.
struct PointerInfo {
  MemoryKind kind = MemoryKind::kHost;
  int ordinal = -1;         // for kDevice and kManaged
  std::uint64_t base = 0;   // start of the allocation that contains the address; 0 for kHost
  std::uint64_t bytes = 0;  // size of that allocation; 0 for kHost
  // Differs between allocations that had the same address at different times.
  std::uint64_t allocation = 0;
  friend bool operator==(const PointerInfo&, const PointerInfo&) = default;
};

// Lets another process on this machine map an allocation. Plain bytes that can be sent by any
// means.
struct IpcExport {
  std::array<std::byte, 64> handle{};  // cudaIpcMemHandle_t
  std::uint64_t offset = 0;            // of the exported address within its allocation
  std::uint64_t bytes = 0;             // size of the allocation
  std::string pci_bus_id;  // of the device, whose ordinal may differ in the importing process
};

// kHigh is preferred where both have work for the same unit of the device.
enum class StreamPriority : unsigned char { kNormal, kHigh };
enum class EventTiming : unsigned char { kOff, kOn };

enum class CopyKind : unsigned char { kHostToDevice, kDeviceToHost, kDeviceToDevice };
const char* CopyKindName(CopyKind kind) noexcept;  // "H2D", "D2H", "D2D"

struct CopyItem {
  void* dst = nullptr;
  const void* src = nullptr;
  std::size_t bytes = 0;
};

// Memory as seen by a kernel that runs on the CPU.
class EmulatedMemory {
 public:
  virtual ~EmulatedMemory() = default;
  // A CPU pointer to these bytes of device or mapped memory, valid until the kernel ends. Errors:
  // kInvalidArgument where a kernel could not access all of them; the emulated kernel returns that
  // error, which counts as an illegal access.
  virtual Result<std::byte*> At(std::uint64_t address, std::uint64_t bytes) = 0;
};

// A kernel in both forms. The layer that owns the kernel defines one constant of this type.
struct Kernel {
  const char* name;
  // On a GPU: queues the kernel on the stream (ferry/cuda/launch.cuh), whose device is current.
  // Copies what it needs of the arguments before it returns. Null in builds without CUDA.
  Status (*launch)(StreamRef stream, const void* arguments);
  // On the simulated device: does the same work on the CPU, when the stream reaches it.
  Status (*emulate)(EmulatedMemory& memory, const void* arguments);
};

// CUDA's limit on the size of a kernel's parameters.
inline constexpr std::size_t kMaxArgumentBytes = 4096;

// Memory of devices, and of the host as devices access it. Threads and errors: see DeviceApi.
class MemoryApi {
 public:
  // Bytes of the device's memory that no process has allocated.
  virtual Result<std::uint64_t> AvailableMemory(int ordinal) = 0;

  virtual Result<DeviceBuffer> AllocateDevice(int ordinal, std::size_t bytes) = 0;
  // Allocates through a device that the process uses; all devices can access the memory. Blocks.
  virtual Result<PinnedBuffer> AllocatePinned(int ordinal, std::size_t bytes) = 0;
  virtual Result<HostRegistration> RegisterHost(int ordinal, void* data, std::size_t bytes) = 0;
  // The address by which kernels and flags of this device access pinned or registered host memory.
  // May equal the host address.
  virtual Result<void*> MappedAddress(int ordinal, void* host) = 0;
  // Errors: kInvalidArgument where there is no memory at the address: freed, or never allocated.
  virtual Result<PointerInfo> Inspect(const void* address) = 0;

  // Whether kernels of `from` can be allowed to access memory of `to`. Copies always can.
  virtual Result<bool> CanAccessPeer(int from, int to) = 0;
  // Allows it, for the life of the process. Repeating the call is not an error.
  virtual Status EnablePeerAccess(int from, int to) = 0;

  // Exports device memory from AllocateDevice() or cudaMalloc(); the exporter must keep it until
  // the importer has finished. Errors: kUnsupported for other kinds of device memory.
  virtual Result<IpcExport> Export(const void* address) = 0;
  // Maps memory of another process, for copies and kernels of this device: the device's own memory,
  // or that of a device it has access to. Errors: kUnsupported without that access,
  // kInvalidArgument where the other device is not visible to this process.
  virtual Result<ImportedBuffer> Import(int ordinal, const IpcExport& exported) = 0;

 protected:
  ~MemoryApi() = default;
};

// Streams, events, and the work that streams are given. Threads and errors: see DeviceApi.
class StreamApi {
 public:
  virtual Result<Stream> CreateStream(int ordinal, StreamPriority priority) = 0;
  virtual Result<Event> CreateEvent(int ordinal, EventTiming timing) = 0;
  // Moves the event behind all work queued on the stream so far. Both must belong to one device.
  virtual Status Record(const Event& event, StreamRef stream) = 0;
  // Work queued on the stream from now on starts when the event, as recorded now, is ready. They
  // may belong to different devices. An event that was never recorded is ready.
  virtual Status WaitFor(StreamRef stream, const Event& event) = 0;
  // Whether all work before the event, or all work of the stream, is done. Never blocks.
  virtual Result<bool> Query(const Event& event) = 0;
  virtual Result<bool> Query(StreamRef stream) = 0;
  // Time between two ready events with timing.
  virtual Result<std::chrono::nanoseconds> Elapsed(const Event& from, const Event& to) = 0;

  // Blocks until Query() returns true: polls, first without a pause and then at growing intervals
  // of at most 0.5 ms. Errors: kTimedOut, those of Query().
  Status Wait(const Event& event, Deadline deadline);
  Status Wait(StreamRef stream, Deadline deadline);

  // ---- work -------------------------------------------------------------------------------------

  // Copies items that have no order among themselves: no item may write what another one of the
  // list reads or writes. Host memory must be pinned or registered: other memory CUDA copies
  // synchronously on this thread, and the simulated device refuses it. From when the stream reaches
  // the copy until it is done, the source is read and the destination is undefined. After an error
  // some items may be queued.
  virtual Status Copy(StreamRef stream, CopyKind kind, std::span<const CopyItem> items) = 0;
  // Copies the arguments, at most kMaxArgumentBytes. Prefer LaunchKernel().
  virtual Status Launch(StreamRef stream, const Kernel& kernel,
                        std::span<const std::byte> arguments) = 0;

  // ---- flags ------------------------------------------------------------------------------------

  // A flag is an aligned 32-bit word in device memory or at the mapped address of pinned memory.
  // With flags a stream waits for work of the host or of another stream that is not queued yet,
  // without blocking the host. CUDA does not know this order: a stream that waits for a flag may
  // block others that share its queue to the device (CUDA_DEVICE_MAX_CONNECTIONS), and a flag that
  // is never written blocks its stream forever. ProbeFlags() tells whether a device supports flags.
  // Errors: kUnsupported.

  // Work queued from now on waits until int32(flag - value) >= 0 (cuStreamWaitValue32, GEQ).
  virtual Status WaitForFlag(StreamRef stream, const void* flag, std::uint32_t value) = 0;
  // Writes the flag when all earlier work of the stream is done and its writes are visible
  // (cuStreamWriteValue32).
  virtual Status WriteFlag(StreamRef stream, void* flag, std::uint32_t value) = 0;

 protected:
  ~StreamApi() = default;
};

// Work that is captured once and replayed. Threads and errors: see DeviceApi.
class GraphApi {
 public:
  // From now until EndCapture() the stream records what it is given instead of running it: copies
  // and kernels. Any other call for it is wrong, including Query(), and invalidates the capture
  // where CUDA detects it. This thread must not allocate or free memory meanwhile. A kernel should
  // have run before, because its code is loaded at its first launch. Not for a device's default
  // stream.
  virtual Status BeginCapture(StreamRef stream) = 0;
  // The recorded work, in order. The stream leaves capture mode even after an error. Errors:
  // kInvalidArgument where the stream is not being captured, or the capture was invalidated.
  virtual Result<Graph> EndCapture(StreamRef stream) = 0;
  // Queues the graph's work on a stream of its device, with the arguments that were captured.
  // Replays of one graph must not overlap: order them by one stream, or by events.
  virtual Status Replay(StreamRef stream, const Graph& graph) = 0;

  // Captures the work that the function queues on the stream; returns the function's error, if any.
  Result<Graph> Capture(StreamRef stream, FunctionRef<Status()> give);

 protected:
  ~GraphApi() = default;
};

// The GPUs of this process, real or simulated.
//
// Threads: any thread may call any method, and two may use one stream at once. No call but
// MakeCurrent() leaves another device current than before. Only these calls block: Wait(), calls
// that create memory, streams and events, calls that destroy memory, and calls that queue work
// where the device's queue is full (about a thousand entries). Calls that only queue work allocate
// nothing on the device.
//
// Errors name the call, CUDA's name and text of the failure, the values and the fix:
// kInvalidArgument for a wrong call, kUnsupported for what this machine cannot do, kUnavailable
// where memory is short, kDeviceLost as follows, kInternal for what should not happen.
//
// Some failures are sticky: after an illegal access, an assertion or a hardware fault every call
// for that device fails (cudaErrorIllegalAddress and similar). The device is then lost to this
// process: its calls return kDeviceLost, its queued work is dropped, and its events never become
// ready. Host memory, including pinned memory, stays usable, and other devices may: CUDA takes some
// down together (seen with two H200), and IsLost() says which.
// Failures of queued work are reported late, by a later call for that device, often a Query(); a
// call for two devices may report either's.
//
// Code that needs one role takes that role's interface.
class DeviceApi : public MemoryApi, public StreamApi, public GraphApi {
 public:
  virtual ~DeviceApi() = default;

  // Devices are numbered from 0. At least 1.
  virtual int count() const noexcept = 0;
  virtual Versions versions() const = 0;
  // Creates no context, so it costs no GPU memory.
  virtual Result<DeviceFacts> Describe(int ordinal) = 0;
  virtual bool IsLost(int ordinal) const noexcept = 0;
  // For foreign code that asks CUDA for the calling thread's current device.
  virtual Result<CurrentDevice> MakeCurrent(int ordinal) = 0;
  // The calling thread's current device; 0 where it has none.
  virtual int Current() const noexcept = 0;

 private:
  template <Resource kResource>
  friend struct ResourceTraits;
  // Frees a resource that this object created. Logs failures, except those of a lost device.
  virtual void Release(Resource resource, const ResourceHandle& handle) noexcept = 0;
};

// Whether streams of this device can wait for flags and write them. Tests it by doing so, with a
// stream and memory of its own; call it once, in advance. Errors: those of creating a stream and
// memory.
Result<bool> ProbeFlags(DeviceApi& api, int ordinal);

// How many streams of a device may wait for flags at once without blocking its other streams: half
// of the queues to the device. `connections` is the value of CUDA_DEVICE_MAX_CONNECTIONS, null
// where it is not set: 1 to 32, by default 8. With as many waiting streams as queues nothing on
// that device moves (docs/gotchas.md).
std::uint32_t MaxHeldStreams(const char* connections) noexcept;

// The host's access to a flag in pinned memory, by its host address.
inline void StoreFlag(void* flag, std::uint32_t value) noexcept {
  std::atomic_ref<std::uint32_t>(*static_cast<std::uint32_t*>(flag))
      .store(value, std::memory_order_release);
}
inline std::uint32_t LoadFlag(void* flag) noexcept {
  return std::atomic_ref<std::uint32_t>(*static_cast<std::uint32_t*>(flag))
      .load(std::memory_order_acquire);
}

template <class Arguments>
Status LaunchKernel(StreamApi& api, StreamRef stream, const Kernel& kernel,
                    const Arguments& arguments) {
  static_assert(std::is_trivially_copyable_v<Arguments>, "arguments are copied as bytes");
  static_assert(sizeof(Arguments) <= kMaxArgumentBytes, "more than CUDA passes to a kernel");
  return api.Launch(stream, kernel, std::as_bytes(std::span(&arguments, 1)));
}

}  // namespace ferry::cuda
