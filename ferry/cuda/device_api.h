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
  int numa_node = -1;      // -1: none, or not known
};

// CUDA versions as CUDA numbers them: 13000 is 13.0.
struct Versions {
  int driver_api = 0;         // the newest that the driver can do
  int runtime = 0;            // what this program was built with
  std::string kernel_module;  // "580.159.04"; empty where it is not told
};

enum class MemoryKind : unsigned char { kHost, kPinned, kDevice, kManaged };
const char* MemoryKindName(MemoryKind kind) noexcept;  // "host", "pinned", "device", "managed"

// What is known of an address.
struct PointerInfo {
  MemoryKind kind = MemoryKind::kHost;
  int ordinal = -1;              // of kDevice and kManaged
  std::uint64_t base = 0;        // of the allocation it points into; 0 for kHost
  std::uint64_t bytes = 0;       // of that allocation; 0 for kHost
  std::uint64_t allocation = 0;  // differs between allocations that had the same address in turn
  friend bool operator==(const PointerInfo&, const PointerInfo&) = default;
};

// Lets another process on this machine map an allocation. Plain bytes: sent by any means.
struct IpcExport {
  std::array<std::byte, 64> handle{};  // cudaIpcMemHandle_t
  std::uint64_t offset = 0;            // of the exported address in its allocation
  std::uint64_t bytes = 0;             // of the allocation
  std::string pci_bus_id;              // of its device, whose ordinal may differ over there
};

// The higher is preferred where both have work for the same unit of the device.
enum class StreamPriority : unsigned char { kNormal, kHigh };
enum class EventTiming : unsigned char { kOff, kOn };

enum class CopyKind : unsigned char { kHostToDevice, kDeviceToHost, kDeviceToDevice };
const char* CopyKindName(CopyKind kind) noexcept;  // "H2D", "D2H", "D2D"

struct CopyItem {
  void* dst = nullptr;
  const void* src = nullptr;
  std::size_t bytes = 0;
};

// Memory as a kernel sees it that is run on the CPU.
class EmulatedMemory {
 public:
  virtual ~EmulatedMemory() = default;
  // Where the CPU finds these bytes of device or mapped memory, until the kernel's end. Errors:
  // kInvalidArgument where a kernel could not reach all of them; a kernel returns it, and has made
  // an illegal access.
  virtual Result<std::byte*> At(std::uint64_t address, std::uint64_t bytes) = 0;
};

// A kernel for both implementations: the layer that has it defines one constant of this.
struct Kernel {
  const char* name;
  // On a GPU: puts the kernel on the stream (ferry/cuda/launch.cuh), whose device is current. Takes
  // what it needs of the arguments before it returns. Null in builds without CUDA.
  Status (*launch)(StreamRef stream, const void* arguments);
  // On the simulated device: does the same on the CPU, when the stream has come to it.
  Status (*emulate)(EmulatedMemory& memory, const void* arguments);
};

// As CUDA allows for a kernel's parameters.
inline constexpr std::size_t kMaxArgumentBytes = 4096;

// The GPUs of this process, real or simulated.
//
// Threads: any thread may call anything, and two may use one stream at once. No call but
// MakeCurrent() changes the calling thread's current device. Nothing blocks but Wait(), what makes
// memory, streams and events, what destroys memory, and calls that queue work where the device's
// queue is full (of about a thousand pieces). The calls that only queue work allocate nothing on
// the device.
//
// Errors name the call, CUDA's name and text of the failure, what was tried and the next step:
// kInvalidArgument for a call that is wrong, kUnsupported for what this machine cannot do,
// kUnavailable where memory is short, kDeviceLost as follows, kInternal for what should not happen.
//
// Some failures are sticky: after an illegal access, an assertion or a fault of the hardware every
// call for that device fails (cudaErrorIllegalAddress and its like). The device is lost to this
// process then: its calls return kDeviceLost, its queued work is dropped, and its events never
// become ready. Host memory, pinned memory included, goes on, and so may other devices: CUDA takes
// some down together (seen with two H200), and IsLost() says which.
// Failures of queued work show late, by a later call for that device, often a Query(); a call for
// two devices may tell of either's.
class DeviceApi {
 public:
  virtual ~DeviceApi() = default;

  // ---- facts ------------------------------------------------------------------------------------

  // Devices are numbered from 0. At least 1.
  virtual int count() const noexcept = 0;
  virtual Versions versions() const = 0;
  // Makes no context, so it costs no GPU memory.
  virtual Result<DeviceFacts> Describe(int ordinal) = 0;
  virtual bool IsLost(int ordinal) const noexcept = 0;
  // For code that is not ours and asks CUDA which device is meant: makes this the calling thread's
  // current one.
  virtual Status MakeCurrent(int ordinal) = 0;
  // Bytes of the device's memory that nobody has, in this process or another.
  virtual Result<std::uint64_t> AvailableMemory(int ordinal) = 0;

  // ---- memory -----------------------------------------------------------------------------------

  virtual Result<DeviceBuffer> AllocateDevice(int ordinal, std::size_t bytes) = 0;
  // By way of a device that the process uses; all devices reach it.
  virtual Result<PinnedBuffer> AllocatePinned(int ordinal, std::size_t bytes) = 0;
  virtual Result<HostRegistration> RegisterHost(int ordinal, void* data, std::size_t bytes) = 0;
  // Where kernels and flags of this device find an address of pinned or registered memory. May or
  // may not be the same address.
  virtual Result<void*> MappedAddress(int ordinal, void* host) = 0;
  // Errors: kInvalidArgument where nothing is at the address, be it freed or never allocated.
  virtual Result<PointerInfo> Inspect(const void* address) = 0;

  // Whether kernels of `from` can be allowed to reach memory of `to`. Copies always can.
  virtual Result<bool> CanAccessPeer(int from, int to) = 0;
  // Allows it, for this process's life. Doing so again is no error.
  virtual Status EnablePeerAccess(int from, int to) = 0;

  // Of device memory that AllocateDevice() or cudaMalloc() made; the exporter keeps it until the
  // importer is done. Errors: kUnsupported for other kinds of device memory.
  virtual Result<IpcExport> Export(const void* address) = 0;
  // In another process than the exporter's: what copies and kernels of this device then reach, be
  // it the device's own memory or that of one that it has access to. Errors: kUnsupported where it
  // has not, kInvalidArgument where the other device is not visible to this process.
  virtual Result<ImportedBuffer> Import(int ordinal, const IpcExport& exported) = 0;

  // ---- streams and events -----------------------------------------------------------------------

  virtual Result<Stream> CreateStream(int ordinal, StreamPriority priority) = 0;
  virtual Result<Event> CreateEvent(int ordinal, EventTiming timing) = 0;
  // Moves the event behind all that is queued on the stream now. Of one device, both.
  virtual Status Record(const Event& event, StreamRef stream) = 0;
  // Work queued on the stream from now on begins when the event, as it is recorded now, is ready.
  // Of any two devices. An event that was never recorded is ready.
  virtual Status WaitFor(StreamRef stream, const Event& event) = 0;
  // Whether all before the event is done, or all of the stream. Never waits.
  virtual Result<bool> Query(const Event& event) = 0;
  virtual Result<bool> Query(StreamRef stream) = 0;
  // Between two events with timing, both of them ready.
  virtual Result<std::chrono::nanoseconds> Elapsed(const Event& from, const Event& to) = 0;

  // Until Query() says yes: polls, first at once and then ever more rarely, every 0.5 ms at last.
  // Errors: kTimedOut, those of Query().
  Status Wait(const Event& event, Deadline deadline);
  Status Wait(StreamRef stream, Deadline deadline);

  // ---- work -------------------------------------------------------------------------------------

  // All items go one way, and have no order among themselves: none may write what another of the
  // list reads or writes. Host memory must be pinned or registered: with other memory CUDA copies
  // at once on this thread, and the simulated device refuses. The source is read, and the
  // destination undefined, from when the stream comes to it until it is done. After an error some
  // of the items may be queued.
  virtual Status Copy(StreamRef stream, CopyKind kind, std::span<const CopyItem> items) = 0;
  // Copies the arguments, at most kMaxArgumentBytes. See LaunchKernel().
  virtual Status Launch(StreamRef stream, const Kernel& kernel,
                        std::span<const std::byte> arguments) = 0;

  // ---- graphs -----------------------------------------------------------------------------------

  // From now on until EndCapture() the stream does nothing that it is given, but keeps it: copies
  // and kernels. Any other call for it is wrong then, Query() included, and the
  // capture is lost where CUDA finds out. This thread must not allocate meanwhile, nor give memory
  // back. A kernel should have run before: its code is loaded when it first does. Not for a
  // device's default stream.
  virtual Status BeginCapture(StreamRef stream) = 0;
  // What the stream has kept, in its order. The stream is as it was before, whatever went wrong.
  // Errors: kInvalidArgument where the stream is not being captured, or the capture was lost.
  virtual Result<Graph> EndCapture(StreamRef stream) = 0;
  // Queues the graph's work on a stream of its device, with the arguments that it was captured
  // with. Replays of one graph must follow each other: in one stream, or by events.
  virtual Status Replay(StreamRef stream, const Graph& graph) = 0;

  // Captures what the function gives the stream, and returns the function's error if it has one.
  Result<Graph> Capture(StreamRef stream, FunctionRef<Status()> give);

  // ---- flags ------------------------------------------------------------------------------------

  // A flag is a 32-bit word, aligned, in device memory or at the mapped address of pinned memory.
  // By flags a stream waits for what is not queued yet, of the host or of another stream, and the
  // host is not blocked. CUDA does not see this order: a stream that waits for a flag may keep
  // others waiting that share its queue to the device (CUDA_DEVICE_MAX_CONNECTIONS), and whatever
  // happens the flag must be written one day, or the stream never ends. ProbeFlags() tells whether
  // a device can. Errors: kUnsupported.

  // Work queued from now on waits until int32(flag - value) >= 0 (cuStreamWaitValue32, GEQ).
  virtual Status WaitForFlag(StreamRef stream, const void* flag, std::uint32_t value) = 0;
  // When all before it is done, and what it wrote can be seen (cuStreamWriteValue32).
  virtual Status WriteFlag(StreamRef stream, void* flag, std::uint32_t value) = 0;

 private:
  template <Resource kResource>
  friend struct ResourceTraits;
  // Of what this object has made. Logs failures, other than those of a lost device.
  virtual void Release(Resource resource, const ResourceHandle& handle) noexcept = 0;
};

// Whether streams of this device can wait for flags and write them, found out by doing it: once, in
// advance. Errors: those of making a stream and memory.
Result<bool> ProbeFlags(DeviceApi& api, int ordinal);

// Streams of a device that may wait for flags at a time so that its others go on: half of the
// queues by which streams reach it. `connections` is the variable CUDA_DEVICE_MAX_CONNECTIONS, null
// where it is not set: 1 to 32, by default 8. With as many streams waiting as there are queues
// nothing of that device moves (docs/gotchas.md).
std::uint32_t MostHeldStreams(const char* connections) noexcept;

// The host's side of a flag in pinned memory, at its host address.
inline void StoreFlag(void* flag, std::uint32_t value) noexcept {
  std::atomic_ref<std::uint32_t>(*static_cast<std::uint32_t*>(flag))
      .store(value, std::memory_order_release);
}
inline std::uint32_t LoadFlag(void* flag) noexcept {
  return std::atomic_ref<std::uint32_t>(*static_cast<std::uint32_t*>(flag))
      .load(std::memory_order_acquire);
}

template <class Arguments>
Status LaunchKernel(DeviceApi& api, StreamRef stream, const Kernel& kernel,
                    const Arguments& arguments) {
  static_assert(std::is_trivially_copyable_v<Arguments>, "arguments are copied as bytes");
  static_assert(sizeof(Arguments) <= kMaxArgumentBytes, "more than CUDA passes to a kernel");
  return api.Launch(stream, kernel, std::as_bytes(std::span(&arguments, 1)));
}

}  // namespace ferry::cuda
