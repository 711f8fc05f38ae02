// The simulated DeviceApi: checks calls, injects faults, counts.
#include "ferry/cuda/simulated/devices.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "ferry/core/check.h"

namespace ferry::cuda {
namespace {

constexpr int kMaxDevices = 16;
constexpr int kVersion = 13000;
constexpr std::size_t kFlagAlignment = 4;

// Those that the calling thread has made current, the latest one last.
std::vector<int>& CurrentDevices() {
  thread_local std::vector<int> devices;
  return devices;
}

std::uint64_t Number(const void* address) noexcept {
  return reinterpret_cast<std::uint64_t>(address);
}

std::string BusId(int ordinal) { return fmt::format("0000:{:02x}:00.0", ordinal + 1); }

// A range of bytes that one item of a list reads or writes.
struct Run {
  std::uint64_t first;
  std::uint64_t bytes;
  std::size_t item;
  bool written;
};

// The items of a list have no order among themselves, so none may write what another one reads or
// writes. Sorted by their first byte, a run overlaps one before it exactly if it begins before the
// furthest end so far; two runs that are only read may overlap.
Status CheckApart(std::span<const CopyItem> items) {
  std::vector<Run> runs;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (items[i].bytes == 0) continue;
    runs.push_back({Number(items[i].dst), items[i].bytes, i, true});
    runs.push_back({Number(items[i].src), items[i].bytes, i, false});
  }
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.first < b.first; });
  // The furthest end so far of written bytes, and of all bytes, and the items they belong to.
  std::uint64_t written_end = 0;
  std::uint64_t end = 0;
  std::size_t written_by = 0;
  std::size_t end_of = 0;
  for (const Run& run : runs) {
    const bool on_written = run.first < written_end;
    if (on_written || (run.written && run.first < end)) {
      return Error(
          Code::kInvalidArgument,
          fmt::format("items {} and {} of a list of copies overlap at {:#x}; put them into "
                      "two lists, whose order is kept",
                      on_written ? written_by : end_of, run.item, run.first));
    }
    const std::uint64_t run_end = run.first + run.bytes;
    if (run.written && run_end > written_end) {
      written_end = run_end;
      written_by = run.item;
    }
    if (run_end > end) {
      end = run_end;
      end_of = run.item;
    }
  }
  return Ok();
}

}  // namespace

Result<std::unique_ptr<SimulatedDevices>> SimulatedDevices::Create(
    const SimulationOptions& options) {
  if (options.devices < 1 || options.devices > kMaxDevices) {
    return Error(Code::kInvalidArgument, fmt::format("{} simulated devices; allowed is 1..{}",
                                                     options.devices, kMaxDevices));
  }
  FERRY_TRY_ASSIGN(auto memory,
                   SimulatedMemory::Create(options.devices, options.device_bytes,
                                           options.pinned_bytes, options.network_access));
  std::unique_ptr<SimulatedDevices> devices(new SimulatedDevices(options, std::move(memory)));
  FERRY_TRY(devices->scheduler_.Start());
  return devices;
}

SimulatedDevices::SimulatedDevices(const SimulationOptions& options,
                                   std::unique_ptr<SimulatedMemory> memory)
    : options_(options),
      memory_(std::move(memory)),
      lost_(static_cast<std::size_t>(options.devices)),
      scheduler_(
          *memory_, options.devices,
          {.seed = options.seed, .workers = options.workers, .max_delay = options.max_delay}) {}

SimulatedDevices::~SimulatedDevices() = default;

// ---- faults and counts --------------------------------------------------------------------------

void SimulatedDevices::Inject(const InjectedFault& fault) {
  const std::lock_guard lock(mutex_);
  faults_.push_back(fault);
}

SimulationCounters SimulatedDevices::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

void SimulatedDevices::Count(std::uint64_t SimulationCounters::*counter, std::uint64_t by) {
  const std::lock_guard lock(mutex_);
  counters_.*counter += by;
}

// The first fault of this device and place; each is used once, after `skip` calls that succeed.
std::optional<Fault> SimulatedDevices::TakeFault(int ordinal, FaultPoint at) {
  const std::lock_guard lock(mutex_);
  for (auto fault = faults_.begin(); fault != faults_.end(); ++fault) {
    if (fault->ordinal != ordinal || fault->at != at) continue;
    if (fault->skip > 0) {
      --fault->skip;
      return std::nullopt;
    }
    const Fault kind = fault->fault;
    faults_.erase(fault);
    return kind;
  }
  return std::nullopt;
}

// The first step of each call. A failure of queued work shows here, at whichever call comes next,
// as with CUDA. broken() waits until nothing of the device runs any more, so that the caller may
// free memory as soon as it has seen the error.
Status SimulatedDevices::Enter(int ordinal, std::string_view tried) {
  if (ordinal < 0 || ordinal >= options_.devices) {
    return NoSuchDevice(ordinal, options_.devices, tried);
  }
  std::atomic<bool>& lost = lost_[static_cast<std::size_t>(ordinal)];
  if (lost.load(std::memory_order_acquire)) return LostDevice(ordinal, tried);
  if (const auto failure = scheduler_.broken(ordinal)) {
    lost.store(true, std::memory_order_release);
    return CudaError(failure->fault,
                     fmt::format("{} on device {}, after {}", tried, ordinal, failure->tried));
  }
  return Ok();
}

Status SimulatedDevices::EnterStream(StreamRef stream, std::string_view tried) {
  FERRY_TRY(Enter(stream.ordinal(), tried));
  if (scheduler_.Knows(stream)) return Ok();
  return CudaError(Fault::kInvalidResourceHandle, fmt::format("{} on stream {} of device {}", tried,
                                                              stream.native(), stream.ordinal()));
}

// For calls that a captured stream does not allow. They also make the capture itself fail.
Status SimulatedDevices::EnterFreeStream(StreamRef stream, std::string_view tried) {
  FERRY_TRY(EnterStream(stream, tried));
  if (!graphs_.Spoil(stream)) return Ok();
  return CudaError(
      Fault::kStreamCaptureUnsupported,
      fmt::format("{} on stream {} of device {}", tried, stream.native(), stream.ordinal()));
}

// For calls that take effect at once: an injected fault is their error, a sticky one loses the
// device.
Status SimulatedDevices::Begin(int ordinal, FaultPoint at, std::string_view tried) {
  FERRY_TRY(Enter(ordinal, tried));
  const auto fault = TakeFault(ordinal, at);
  if (!fault) return Ok();
  if (IsSticky(static_cast<int>(*fault))) {
    scheduler_.Break(ordinal, {*fault, "a call that was told to fail"});
    return Enter(ordinal, tried);
  }
  return CudaError(*fault, fmt::format("{} on device {}", tried, ordinal));
}

// For calls that queue work. A sticky fault travels with the work and shows only when that runs, as
// an illegal access of a kernel does; others are the call's error.
Result<std::optional<Fault>> SimulatedDevices::BeginWork(StreamRef stream, FaultPoint at,
                                                         std::string_view tried) {
  FERRY_TRY(EnterStream(stream, tried));
  auto fault = TakeFault(stream.ordinal(), at);
  if (fault && !IsSticky(static_cast<int>(*fault))) {
    return CudaError(*fault, fmt::format("{} on device {}", tried, stream.ordinal()));
  }
  return fault;
}

// ---- facts --------------------------------------------------------------------------------------

Versions SimulatedDevices::versions() const {
  return {.driver_api = kVersion, .runtime = kVersion, .kernel_module = "simulated"};
}

Result<DeviceFacts> SimulatedDevices::Describe(int ordinal) {
  if (ordinal < 0 || ordinal >= options_.devices) {
    return NoSuchDevice(ordinal, options_.devices, "describing");
  }
  return DeviceFacts{.ordinal = ordinal,
                     .name = "simulated device",
                     .compute_major = 9,
                     .compute_minor = 0,
                     .multiprocessors = 4,
                     .copy_engines = 2,
                     .memory_bytes = options_.device_bytes,
                     .pci_bus_id = BusId(ordinal),
                     .numa_node = -1,
                     .network_access = options_.network_access};
}

bool SimulatedDevices::IsLost(int ordinal) const noexcept {
  return ordinal >= 0 && ordinal < options_.devices &&
         lost_[static_cast<std::size_t>(ordinal)].load(std::memory_order_acquire);
}

Result<std::uint64_t> SimulatedDevices::AvailableMemory(int ordinal) {
  FERRY_TRY(Enter(ordinal, "cudaMemGetInfo"));
  return memory_->Available(ordinal);
}

// ---- memory -------------------------------------------------------------------------------------

Result<DeviceBuffer> SimulatedDevices::AllocateDevice(int ordinal, std::size_t bytes) {
  constexpr std::string_view kTried = "cudaMalloc";
  FERRY_TRY(Begin(ordinal, FaultPoint::kAllocateDevice, kTried));
  if (bytes == 0) return CudaError(Fault::kInvalidValue, "cudaMalloc of 0 bytes");
  FERRY_TRY_ASSIGN(void* const at, memory_->AllocateDevice(ordinal, bytes));
  Count(&SimulationCounters::device_allocations);
  return DeviceBuffer({.api = this, .native = at, .bytes = bytes, .ordinal = ordinal});
}

Result<PinnedBuffer> SimulatedDevices::AllocatePinned(int ordinal, std::size_t bytes) {
  constexpr std::string_view kTried = "cudaHostAlloc";
  FERRY_TRY(Begin(ordinal, FaultPoint::kAllocatePinned, kTried));
  if (bytes == 0) return CudaError(Fault::kInvalidValue, "cudaHostAlloc of 0 bytes");
  FERRY_TRY_ASSIGN(void* const at, memory_->AllocatePinned(bytes));
  Count(&SimulationCounters::pinned_allocations);
  return PinnedBuffer({.api = this, .native = at, .bytes = bytes, .ordinal = ordinal});
}

Result<HostRegistration> SimulatedDevices::RegisterHost(int ordinal, void* data,
                                                        std::size_t bytes) {
  FERRY_TRY(Begin(ordinal, FaultPoint::kRegister, "cudaHostRegister"));
  if (bytes == 0) return CudaError(Fault::kInvalidValue, "cudaHostRegister of 0 bytes");
  FERRY_TRY_ASSIGN(void* const at, memory_->Register(data, bytes));
  Count(&SimulationCounters::registrations);
  return HostRegistration({.api = this, .native = at, .bytes = bytes, .ordinal = ordinal});
}

Result<void*> SimulatedDevices::MappedAddress(int ordinal, void* host) {
  FERRY_TRY(Enter(ordinal, "cuPointerGetAttributes"));
  return memory_->MappedAddress(host);
}

Result<PointerInfo> SimulatedDevices::Inspect(const void* address) {
  return memory_->Inspect(address);
}

Result<CurrentDevice> SimulatedDevices::MakeCurrent(int ordinal) {
  FERRY_TRY(Enter(ordinal, "cuCtxPushCurrent"));
  CurrentDevices().push_back(ordinal);
  return CurrentDevice({.api = this, .ordinal = ordinal});
}

int SimulatedDevices::current() noexcept {
  return CurrentDevices().empty() ? 0 : CurrentDevices().back();
}

Result<bool> SimulatedDevices::CanAccessPeer(int from, int to) {
  for (const int ordinal : {from, to}) FERRY_TRY(Enter(ordinal, "cudaDeviceCanAccessPeer"));
  return options_.peer_access && from != to;
}

Status SimulatedDevices::EnablePeerAccess(int from, int to) {
  FERRY_TRY(Begin(from, FaultPoint::kPeerAccess, "cudaDeviceEnablePeerAccess"));
  FERRY_TRY_ASSIGN(const bool can, CanAccessPeer(from, to));
  if (!can) {
    return CudaError(Fault::kPeerAccessUnsupported,
                     fmt::format("cudaDeviceEnablePeerAccess from device {} to {}", from, to));
  }
  memory_->EnablePeerAccess(from, to);
  return Ok();
}

Result<IpcExport> SimulatedDevices::Export(const void* address) {
  FERRY_TRY_ASSIGN(IpcExport exported, memory_->Export(address));
  FERRY_TRY_ASSIGN(const PointerInfo info, memory_->Inspect(address));
  exported.pci_bus_id = BusId(info.ordinal);
  return exported;
}

Result<ImportedBuffer> SimulatedDevices::Import(int ordinal, const IpcExport& exported) {
  FERRY_TRY(Begin(ordinal, FaultPoint::kImport, "cudaIpcOpenMemHandle"));
  int owner = 0;
  while (owner < count() && exported.pci_bus_id != BusId(owner)) ++owner;
  if (owner == count()) {
    return CudaError(Fault::kInvalidDevice, fmt::format("cudaIpcOpenMemHandle on device {} of "
                                                        "memory of {}, which is not visible here",
                                                        ordinal, exported.pci_bus_id));
  }
  FERRY_TRY_ASSIGN(void* const at, memory_->Import(ordinal, exported));
  Count(&SimulationCounters::imports);
  return ImportedBuffer({.api = this, .native = at, .bytes = exported.bytes, .ordinal = ordinal});
}

// ---- streams and events -------------------------------------------------------------------------

Result<Stream> SimulatedDevices::CreateStream(int ordinal, StreamPriority /*priority*/) {
  FERRY_TRY(Begin(ordinal, FaultPoint::kStream, "cudaStreamCreateWithPriority"));
  Count(&SimulationCounters::streams);
  return Stream({.api = this, .native = scheduler_.AddStream(ordinal), .ordinal = ordinal});
}

Result<Event> SimulatedDevices::CreateEvent(int ordinal, EventTiming timing) {
  FERRY_TRY(Begin(ordinal, FaultPoint::kEvent, "cudaEventCreateWithFlags"));
  const std::lock_guard lock(mutex_);
  ++counters_.events;
  const std::uint64_t handle = next_event_++;
  events_[handle] = EventState{ordinal, timing, nullptr};
  return Event({.api = this, .native = reinterpret_cast<void*>(handle), .ordinal = ordinal});
}

Result<SimulatedDevices::EventState> SimulatedDevices::StateOf(const Event& event,
                                                               std::string_view tried) {
  const std::lock_guard lock(mutex_);
  const auto state = events_.find(Number(event.get().native));
  if (state == events_.end()) {
    return CudaError(Fault::kInvalidResourceHandle,
                     fmt::format("{} of event {}", tried, event.get().native));
  }
  return state->second;
}

Status SimulatedDevices::Record(const Event& event, StreamRef stream) {
  constexpr std::string_view kTried = "cudaEventRecord";
  FERRY_TRY(EnterFreeStream(stream, kTried));
  FERRY_TRY_ASSIGN(const EventState state, StateOf(event, kTried));
  if (state.ordinal != stream.ordinal()) {
    return CudaError(
        Fault::kInvalidResourceHandle,
        fmt::format("cudaEventRecord of an event of device {} on a stream of device {}",
                    state.ordinal, stream.ordinal()));
  }
  // A new one for each recording: a wait refers to the recording that was the last when it was
  // queued, and is not moved by a later one.
  const auto record = std::make_shared<SimulatedRecord>();
  {
    const std::lock_guard lock(mutex_);
    events_[Number(event.get().native)].last = record;
    ++counters_.records;
  }
  scheduler_.Push(stream, SimulatedRecording{record}, std::nullopt);
  return Ok();
}

Status SimulatedDevices::WaitFor(StreamRef stream, const Event& event) {
  constexpr std::string_view kTried = "cudaStreamWaitEvent";
  FERRY_TRY(EnterFreeStream(stream, kTried));
  FERRY_TRY_ASSIGN(const EventState state, StateOf(event, kTried));
  FERRY_TRY(Enter(state.ordinal, kTried));
  Count(&SimulationCounters::event_waits);
  // An event that was never recorded counts as complete.
  if (state.last != nullptr) scheduler_.Push(stream, SimulatedWait{state.last}, std::nullopt);
  return Ok();
}

Result<bool> SimulatedDevices::Query(const Event& event) {
  constexpr std::string_view kTried = "cudaEventQuery";
  FERRY_TRY_ASSIGN(const EventState state, StateOf(event, kTried));
  FERRY_TRY(Enter(state.ordinal, kTried));
  return state.last == nullptr || scheduler_.IsDone(state.last);
}

Result<bool> SimulatedDevices::Query(StreamRef stream) {
  constexpr std::string_view kTried = "cudaStreamQuery";
  FERRY_TRY(EnterFreeStream(stream, kTried));
  const bool idle = scheduler_.IsIdle(stream);
  // Checked again, because a stream is also idle once its device is lost.
  FERRY_TRY(Enter(stream.ordinal(), kTried));
  return idle;
}

Result<std::chrono::nanoseconds> SimulatedDevices::Elapsed(const Event& from, const Event& to) {
  constexpr std::string_view kTried = "cudaEventElapsedTime";
  FERRY_TRY_ASSIGN(const EventState first, StateOf(from, kTried));
  FERRY_TRY_ASSIGN(const EventState last, StateOf(to, kTried));
  FERRY_TRY(Enter(first.ordinal, kTried));
  if (first.timing == EventTiming::kOff || last.timing == EventTiming::kOff ||
      first.last == nullptr || last.last == nullptr) {
    return CudaError(Fault::kInvalidResourceHandle,
                     "cudaEventElapsedTime of events without timing or never recorded");
  }
  if (!scheduler_.IsDone(first.last) || !scheduler_.IsDone(last.last)) {
    return CudaError(Fault::kNotReady, kTried);
  }
  return scheduler_.Between(first.last, last.last);
}

void SimulatedDevices::Release(Resource resource, const ResourceHandle& handle) noexcept {
  switch (resource) {
    case Resource::kDeviceMemory:
    case Resource::kPinnedMemory:
    case Resource::kRegistration:
    case Resource::kImport: memory_->Release(resource, handle.native); return;
    case Resource::kStream:
      graphs_.Forget(StreamRef::Foreign(handle.ordinal, handle.native));
      scheduler_.RemoveStream(handle.native);
      return;
    case Resource::kEvent: {
      const std::lock_guard lock(mutex_);
      events_.erase(Number(handle.native));
      return;
    }
    case Resource::kGraph: graphs_.Remove(handle.native); return;
    case Resource::kCurrentDevice: CurrentDevices().pop_back(); return;
  }
}

// ---- work ---------------------------------------------------------------------------------------

Status SimulatedDevices::CheckItems(CopyKind kind, std::span<const CopyItem> items) {
  const Reach dst = kind == CopyKind::kDeviceToHost ? Reach::kHost : Reach::kDevice;
  const Reach src = kind == CopyKind::kHostToDevice ? Reach::kHost : Reach::kDevice;
  for (const CopyItem& item : items) {
    if (item.bytes == 0) continue;
    // The copy engine reaches the memory of every device, so the ordinal does not matter here.
    const auto to = memory_->Hold(dst, 0, Number(item.dst), item.bytes);
    const auto from = memory_->Hold(src, 0, Number(item.src), item.bytes);
    if (to && from) continue;
    return CudaError(Fault::kInvalidValue,
                     fmt::format("cudaMemcpyAsync {} {} {}", CopyKindName(kind), to ? "from" : "to",
                                 (to ? from : to).error().message()));
  }
  return CheckApart(items);
}

Status SimulatedDevices::Copy(StreamRef stream, CopyKind kind, std::span<const CopyItem> items) {
  FERRY_TRY_ASSIGN(const auto fault, BeginWork(stream, FaultPoint::kCopy, "cudaMemcpyAsync"));
  FERRY_TRY(CheckItems(kind, items));
  SimulatedCopy copy{.kind = kind, .left = {}};
  std::uint64_t bytes = 0;
  for (const CopyItem& item : items) {
    if (item.bytes != 0) copy.left.push_back(item);
    bytes += item.bytes;
  }
  Count(&SimulationCounters::copy_calls);
  Count(&SimulationCounters::copy_items, items.size());
  Count(&SimulationCounters::copy_bytes, bytes);
  // A list of empty items is no work, but counts as a call.
  if (!copy.left.empty()) Push(stream, std::move(copy), fault);
  return Ok();
}

Status SimulatedDevices::Launch(StreamRef stream, const Kernel& kernel,
                                std::span<const std::byte> arguments) {
  const std::string tried = fmt::format("launching {}", kernel.name);
  if (!options_.kernels) {
    return CudaError(Fault::kNoKernelImageForDevice,
                     fmt::format("{} on device {}", tried, stream.ordinal()));
  }
  FERRY_TRY_ASSIGN(const auto fault, BeginWork(stream, FaultPoint::kLaunch, tried));
  if (kernel.emulate == nullptr) {
    return Error(Code::kUnsupported,
                 tried + ": it has no form for the simulated device; use a GPU");
  }
  if (arguments.size() > kMaxArgumentBytes) {
    return CudaError(Fault::kInvalidValue,
                     fmt::format("{} with {} bytes of arguments", tried, arguments.size()));
  }
  // Arguments are kept aligned for any type, since the emulation reads them as their own struct.
  constexpr std::size_t kWord = sizeof(std::max_align_t);
  SimulatedLaunch launch{kernel,
                         std::vector<std::max_align_t>((arguments.size() + kWord - 1) / kWord)};
  if (!arguments.empty()) {
    std::memcpy(launch.arguments.data(), arguments.data(), arguments.size());
  }
  Count(&SimulationCounters::launches);
  Push(stream, std::move(launch), fault);
  return Ok();
}

// ---- graphs -------------------------------------------------------------------------------------

void SimulatedDevices::Push(StreamRef stream, SimulatedWork work, std::optional<Fault> fault) {
  if (graphs_.Keep(stream, &work, fault)) return;
  scheduler_.Push(stream, std::move(work), fault);
}

Status SimulatedDevices::BeginCapture(StreamRef stream) {
  constexpr std::string_view kTried = "cudaStreamBeginCapture";
  FERRY_TRY(EnterFreeStream(stream, kTried));
  if (stream.native() == nullptr) {
    return CudaError(
        Fault::kStreamCaptureUnsupported,
        fmt::format("{} on the default stream of device {}", kTried, stream.ordinal()));
  }
  graphs_.Begin(stream);
  return Ok();
}

Result<Graph> SimulatedDevices::EndCapture(StreamRef stream) {
  FERRY_TRY(EnterStream(stream, "cudaStreamEndCapture"));
  FERRY_TRY_ASSIGN(void* const graph, graphs_.End(stream));
  Count(&SimulationCounters::graphs);
  return Graph({.api = this, .native = graph, .ordinal = stream.ordinal()});
}

Status SimulatedDevices::Replay(StreamRef stream, const Graph& graph) {
  constexpr std::string_view kTried = "cudaGraphLaunch";
  FERRY_TRY(EnterFreeStream(stream, kTried));
  if (graph.ordinal() != stream.ordinal()) {
    return CudaError(Fault::kInvalidValue,
                     fmt::format("{} of a graph of device {} on a stream of device {}", kTried,
                                 graph.ordinal(), stream.ordinal()));
  }
  FERRY_TRY_ASSIGN(auto kept, graphs_.WorkOf(graph.get().native));
  Count(&SimulationCounters::replays);
  // A copy of the work: a graph may be replayed while an earlier replay still runs.
  for (KeptWork& one : kept) scheduler_.Push(stream, std::move(one.work), one.fault);
  return Ok();
}

// ---- flags --------------------------------------------------------------------------------------

Status SimulatedDevices::CheckFlag(StreamRef stream, const void* flag, std::string_view tried) {
  if (!options_.flags) return CudaError(Fault::kNotSupported, tried);
  const auto held =
      memory_->Hold(Reach::kKernel, stream.ordinal(), Number(flag), sizeof(std::uint32_t));
  if (!held) {
    return CudaError(Fault::kInvalidValue, fmt::format("{} at {}", tried, held.error().message()));
  }
  if (Number(flag) % kFlagAlignment != 0) {
    return CudaError(Fault::kInvalidValue, fmt::format("{} at {}, unaligned", tried, flag));
  }
  return Ok();
}

Status SimulatedDevices::WaitForFlag(StreamRef stream, const void* flag, std::uint32_t value) {
  constexpr std::string_view kTried = "cuStreamWaitValue32";
  FERRY_TRY(EnterFreeStream(stream, kTried));
  FERRY_TRY_ASSIGN(const auto fault, BeginWork(stream, FaultPoint::kFlag, kTried));
  FERRY_TRY(CheckFlag(stream, flag, kTried));
  Count(&SimulationCounters::flag_waits);
  scheduler_.Push(stream, SimulatedFlagWait{Number(flag), value}, fault);
  return Ok();
}

Status SimulatedDevices::WriteFlag(StreamRef stream, void* flag, std::uint32_t value) {
  constexpr std::string_view kTried = "cuStreamWriteValue32";
  FERRY_TRY(EnterFreeStream(stream, kTried));
  FERRY_TRY_ASSIGN(const auto fault, BeginWork(stream, FaultPoint::kFlag, kTried));
  FERRY_TRY(CheckFlag(stream, flag, kTried));
  Count(&SimulationCounters::flag_writes);
  scheduler_.Push(stream, SimulatedFlagWrite{Number(flag), value}, fault);
  return Ok();
}

}  // namespace ferry::cuda
