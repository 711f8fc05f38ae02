// A DeviceApi without GPUs that is stricter than one.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/cuda/device_api.h"
#include "ferry/cuda/error.h"
#include "ferry/cuda/simulated/graphs.h"
#include "ferry/cuda/simulated/memory.h"
#include "ferry/cuda/simulated/scheduler.h"

namespace ferry::cuda {

struct SimulationOptions {
  int devices = 1;
  std::uint64_t seed = 1;                // determines the order in which streams run
  int workers = 2;                       // threads that run the devices' work
  microseconds max_delay{100};           // maximum delay of each piece of work
  std::uint64_t device_bytes = 1 << 30;  // memory of each device; allocations beyond it fail
  std::uint64_t pinned_bytes = 1 << 30;
  bool flags = true;        // WaitForFlag() and WriteFlag() are supported
  bool peer_access = true;  // between all devices
  bool kernels = true;      // false: every launch fails as on a GPU that the build has no code for
  // The CPU may access device memory, as network cards access a GPU's.
  bool network_access = false;
};

// Counts of accepted calls.
struct SimulationCounters {
  std::uint64_t device_allocations = 0;
  std::uint64_t pinned_allocations = 0;
  std::uint64_t registrations = 0;
  std::uint64_t imports = 0;
  std::uint64_t streams = 0;
  std::uint64_t events = 0;
  std::uint64_t records = 0;
  std::uint64_t event_waits = 0;
  std::uint64_t copy_calls = 0;
  std::uint64_t copy_items = 0;
  std::uint64_t copy_bytes = 0;
  std::uint64_t launches = 0;
  std::uint64_t graphs = 0;
  std::uint64_t replays = 0;
  std::uint64_t flag_waits = 0;
  std::uint64_t flag_writes = 0;
  friend bool operator==(const SimulationCounters&, const SimulationCounters&) = default;
};

enum class FaultPoint : unsigned char {
  kAllocateDevice,
  kAllocatePinned,
  kRegister,
  kImport,
  kPeerAccess,
  kStream,
  kEvent,
  kCopy,
  kLaunch,
  kFlag,
};

// After `skip` calls that succeed, the next call of this kind for the device fails. A sticky fault
// in queued work does not fail the call but strikes when the work runs.
struct InjectedFault {
  int ordinal = 0;
  FaultPoint at = FaultPoint::kCopy;
  Fault fault = Fault::kLaunchFailure;
  std::uint64_t skip = 0;
};

// Simulated GPUs, for machines without GPUs and for tests of asynchronous code. Stricter than GPUs:
//
// - Only this object may access device memory: a CPU access is a SIGSEGV.
//
// - Work runs late, on threads of this object, each stream in order and the streams in an order
// that the seed determines. Sources are read at that time, in pieces, and destinations hold poison
// until then.
//
// - Memory holds poison after it was allocated and after it was freed, and addresses are not soon
// reused. Memory freed while queued work needs it makes that work an illegal access.
//
// - Kernels and flags access registered host memory by another address than the host.
//
// - Copies refuse pageable memory, and items of one list that overlap.
//
// - A stream in capture mode refuses calls that a graph cannot contain, and invalidates the
// capture.
//
// Two processes share memory by IPC as they do on a GPU.
class SimulatedDevices final : public DeviceApi {
 public:
  static Result<std::unique_ptr<SimulatedDevices>> Create(const SimulationOptions& options);
  // Drops queued work.
  ~SimulatedDevices() override;

  // Holds back queued work until Resume().
  void Pause() { scheduler_.Pause(); }
  void Resume() { scheduler_.Resume(); }
  void Inject(const InjectedFault& fault);
  SimulationCounters counters() const;

  int count() const noexcept override { return options_.devices; }
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
  // The calling thread's current device, as CUDA would tell it.
  static int current() noexcept;
  int Current() const noexcept override { return current(); }
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
  struct EventState {
    int ordinal = 0;
    EventTiming timing = EventTiming::kOff;
    SharedRecord last;  // null until it is recorded; shared as SharedRecord says
  };

  SimulatedDevices(const SimulationOptions& options, std::unique_ptr<SimulatedMemory> memory);

  void Release(Resource resource, const ResourceHandle& handle) noexcept override;

  // Whether calls for the device are possible; like other calls, may discover that it is lost.
  Status Enter(int ordinal, std::string_view tried);
  Status EnterStream(StreamRef stream, std::string_view tried);
  // The same for calls that a graph cannot contain: if the stream is being captured, the capture is
  // invalidated.
  Status EnterFreeStream(StreamRef stream, std::string_view tried);
  // Enter(), then the injected fault, if one applies.
  Status Begin(int ordinal, FaultPoint at, std::string_view tried);
  // The same for queued work, whose sticky fault it returns.
  Result<std::optional<Fault>> BeginWork(StreamRef stream, FaultPoint at, std::string_view tried);
  // Queues the work on the stream, or records it in the stream's capture.
  void Push(StreamRef stream, SimulatedWork work, std::optional<Fault> fault);
  std::optional<Fault> TakeFault(int ordinal, FaultPoint at);
  Result<EventState> StateOf(const Event& event, std::string_view tried);
  Status CheckFlag(StreamRef stream, const void* flag, std::string_view tried);
  Status CheckItems(CopyKind kind, std::span<const CopyItem> items);
  void Count(std::uint64_t SimulationCounters::*counter, std::uint64_t by = 1);

  const SimulationOptions options_;
  const std::unique_ptr<SimulatedMemory> memory_;
  std::vector<std::atomic<bool>> lost_;  // by ordinal: a call has reported the loss

  mutable std::mutex mutex_;
  std::map<std::uint64_t, EventState> events_;  // by native handle
  std::uint64_t next_event_ = 0x100;
  std::vector<InjectedFault> faults_;
  SimulationCounters counters_;

  SimulatedGraphs graphs_;
  SimulatedScheduler scheduler_;  // last: its threads end first
};

}  // namespace ferry::cuda
