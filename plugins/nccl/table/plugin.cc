// The plugin's functions in the form of the newest version.
#include "plugins/nccl/table/plugin.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <limits>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "ferry/core/fork.h"
#include "ferry/net/machine/interface_table.h"
#include "plugins/nccl/attempt.h"
#include "plugins/nccl/engine.h"
#include "plugins/nccl/nccl_request.h"
#include "plugins/nccl/rank.h"
#include "plugins/nccl/recv_comm.h"
#include "plugins/nccl/report.h"
#include "plugins/nccl/send_comm.h"
#include "plugins/nccl/setup/cores.h"
#include "plugins/nccl/setup/gpus.h"
#include "plugins/nccl/setup/nccl_tuner.h"

namespace ferry::nccl_net {
namespace {

constexpr int kMaxComms = 65536;
constexpr const char* kCommName = "NCCL communicator";
constexpr std::uint64_t kFewDescriptors = 1024;
// One way in microseconds, which NCCL adds to its own estimate for networks that GPUs access
// directly: 8 bytes take 5 us over loopback (bench/nccl_net), and more through a NIC.
constexpr float kLatency = 10;
// Minimum speed of a device: NCCL finds no route through one below 0.12 GB/s.
constexpr int kMinMegabits = 1000;
// Tables with contexts are those of 2.28 and later. Where the version is unknown, devices are not
// multiplied for 2.28, and the variable for later versions has no effect there.
constexpr int kWithContexts = 22900;
constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 30;

// The objects that NCCL holds. They share the engine, which is destroyed with the last of them. In
// a forked child all of them belong to the parent: calls fail, and closing one does nothing.
struct Context {
  ProcessMark made;
  std::shared_ptr<Engine> engine;  // shared with all of these
  EventLoop* swift = nullptr;      // the loop of its comms
};
struct ListenComm {
  ProcessMark made;
  std::shared_ptr<Engine> engine;               // shared with the contexts and comms
  std::shared_ptr<PendingComms> pending_comms;  // shared with the acceptor
};
struct DataComm {
  ProcessMark made;
  std::shared_ptr<Engine> engine;  // shared with the contexts and comms
  std::shared_ptr<Comm> comm;      // shared with the provider's callbacks
};
struct MemoryRegion {
  std::span<const std::byte> memory;
};

// The engine in use, and the context of versions that have no contexts.
struct Process {
  std::mutex mutex;
  std::weak_ptr<Engine> engine;  // under mutex
  std::unique_ptr<Context> context;
  std::list<std::string> texts;  // under mutex
};
// Never destroyed: NCCL's threads may still run when the process ends. A forked child gets its own.
Process& TheProcess() {
  static PerProcess<Process> process;
  return process.Get();
}

// What to ask NCCL for. `oldest`: the oldest version of NCCL that has the table in use.
NcclRequest RequestFor(const Settings& settings, const Config::Getter& get, const NcclTuner& tuner,
                       int oldest) {
  NcclFacts facts;
  facts.version = VersionOfNccl(CodeOfNccl()).value_or(oldest);
  facts.megabits = settings.nic.megabits;
  facts.gpus = FindGpus();
  facts.local_ranks = LocalRanks(get);
  if (oldest != kBeforeTuner) return RequestOf(settings.config, get, tuner, facts);
  if (settings.config.nccl_devices > 1) {
    Warn(
        fmt::format("FERRY_NCCL_DEVICES={} is not used: NCCL is older than 2.24; see that it is "
                    "the same on all ranks",
                    settings.config.nccl_devices));
  }
  return {};
}

// `oldest`: as for RequestFor(), if this creates the engine.
Result<std::shared_ptr<Engine>> EngineOfProcess(int oldest) {
  Process& process = TheProcess();
  const std::lock_guard lock(process.mutex);
  // A weak reference: the last context or comm ends the engine, and the next init makes another.
  if (auto engine = process.engine.lock()) return engine;
  const Config::Getter get = [](const char* name) { return std::getenv(name); };
  const std::uint64_t descriptors = RaiseDescriptorLimit();
  if (descriptors != 0 && descriptors < kFewDescriptors) {
    Warn(
        fmt::format("this process may have only {} descriptors, and each peer takes up to 48; "
                    "raise the hard limit (ulimit -Hn) to {} or more",
                    descriptors, kFewDescriptors));
  }
  const unsigned cores = UsableCores(get);
  FERRY_TRY_ASSIGN(Settings settings, LoadSettings(get, cores));
  FERRY_TRY_ASSIGN(net::AddressChoice choice,
                   net::InterfaceTable::OfThisNamespace()->Choose(
                       settings.selection, settings.config.interfaces, settings.family));
  settings.nic = FindNic(std::move(choice.told));
  const NcclTuner tuner = FindNcclTuner(get, CodeOfNccl());
  const NcclRequest request = RequestFor(settings, get, tuner, oldest);
  settings.devices = request.devices;
  settings.max_megabits = request.max_megabits;
  settings.rank = RankOf(request, tuner, get);
  if (settings.config.lanes == 0) {
    settings.bulk_lanes = BulkLanes(request.peer_channels, settings.workers);
  }
  FERRY_TRY_ASSIGN(auto engine, Engine::Create(std::move(settings)));
  Ask(request);
  InformInit(fmt::format("this rank may use {} cores and {} descriptors", cores, descriptors));
  process.engine = engine;
  return engine;
}

std::unique_ptr<Context> NewContext(std::shared_ptr<Engine> engine) {
  EventLoop* const swift = engine->NextSwift();
  return std::make_unique<Context>(Context{{}, std::move(engine), swift});
}

// Runs `body`; no exception leaves this function. The reason of a failure is in NCCL's log when
// this returns, unless that is blocked: NCCL may show its last warning, or end the process.
template <class Body>
int Guarded(const char* call, Body body) noexcept {
  int outcome = abi::kSystemError;
  try {
    outcome = body();
  } catch (const std::exception& error) {
    Warn(fmt::format("{} failed: {}", call, error.what()));
  }
  if (outcome != abi::kSuccess) FlushLog();
  return outcome;
}

template <class Made>
bool IsOfParent(const Made* made) noexcept {
  return made != nullptr && made->made.forked();
}

int FailOfParent(const char* what) { return Fail(MadeBeforeFork(what)); }

Context* ContextOf(void* context) {
  return context != kProcessContext ? static_cast<Context*>(context) : TheProcess().context.get();
}

int NotStarted(const char* call) {
  return Fail(Error(Code::kInvalidArgument, fmt::format("{} was called before init", call)));
}

// Returns kSuccess where the context may be used.
int CheckContext(const Context* one, const char* call) {
  if (one == nullptr) return NotStarted(call);
  return IsOfParent(one) ? FailOfParent("context") : int{abi::kSuccess};
}

Status CheckDevice(const Engine& engine, int device) {
  const std::size_t devices = engine.settings().devices;
  if (device >= 0 && std::cmp_less(device, devices)) return Ok();
  return Error(
      Code::kInvalidArgument,
      fmt::format("device {} does not exist; this machine has 0 to {}", device, devices - 1));
}

// A copy that lives as long as the process: NCCL keeps the pointer, perhaps longer than the engine.
char* Kept(const std::string& text) {
  Process& process = TheProcess();
  const std::lock_guard lock(process.mutex);
  // A list, so that pointers stay valid; equal texts are kept once, however often NCCL asks.
  auto it = std::find(process.texts.begin(), process.texts.end(), text);
  if (it == process.texts.end()) it = process.texts.insert(it, text);
  return it->data();
}

// The engine, kept alive for the length of a call.
std::shared_ptr<Engine> EngineInUse() {
  const std::lock_guard lock(TheProcess().mutex);
  return TheProcess().engine.lock();
}

int CloseComm(void* comm) noexcept {
  return Guarded("close", [&] {
    if (IsOfParent(static_cast<DataComm*>(comm))) return int{abi::kSuccess};
    const std::unique_ptr<DataComm> closed(static_cast<DataComm*>(comm));
    if (closed != nullptr) closed->comm->Close();
    return int{abi::kSuccess};
  });
}

template <class Size>
int ReceiveGroup(void* recv_comm, const Group<Size>& group, void** request) noexcept {
  // NCCL may have left a hint in it.
  *request = nullptr;
  return Guarded("irecv", [&] {
    if (IsOfParent(static_cast<DataComm*>(recv_comm))) return FailOfParent(kCommName);
    if (group.count < 1 || std::cmp_greater(group.count, kMaxReceives)) {
      return Fail(Error(
          Code::kInvalidArgument,
          fmt::format("irecv of {} buffers; 1 to {} can be grouped", group.count, kMaxReceives)));
    }
    std::array<Incoming, kMaxReceives> places;
    const auto count = static_cast<std::size_t>(group.count);
    for (std::size_t i = 0; i < count; ++i) {
      places[i] = {.data = {static_cast<std::byte*>(group.data[i]),
                            static_cast<std::size_t>(group.bytes[i])},
                   .tag = group.tags[i]};
    }
    auto& comm = static_cast<RecvComm&>(*static_cast<DataComm*>(recv_comm)->comm);
    const auto posted = comm.Receive({places.data(), count});
    if (!posted) return Fail(posted.error());
    *request = *posted;
    return int{abi::kSuccess};
  });
}

}  // namespace

// ---- the process --------------------------------------------------------------------------------

int Init(void** context, abi::Logger logger) noexcept {
  return Guarded("init", [&] {
    SetLogger(logger);
    auto engine = EngineOfProcess(kWithContexts);
    if (!engine) return Fail(engine.error());
    *context = NewContext(*std::move(engine)).release();
    return int{abi::kSuccess};
  });
}

int Finalize(void* context) noexcept {
  return Guarded("finalize", [&] {
    if (IsOfParent(static_cast<Context*>(context))) return int{abi::kSuccess};
    const std::unique_ptr<Context> ended(static_cast<Context*>(context));
    if (ended != nullptr) ended->engine->DropAttempts(ended.get());
    FlushLog();
    return int{abi::kSuccess};
  });
}

int InitOnce(int oldest, abi::Logger logger) noexcept {
  return Guarded("init", [&] {
    SetLogger(logger);
    auto engine = EngineOfProcess(oldest);
    if (!engine) return Fail(engine.error());
    Process& process = TheProcess();
    const std::lock_guard lock(process.mutex);
    if (process.context == nullptr) {
      process.context = NewContext(*std::move(engine));
    }
    return int{abi::kSuccess};
  });
}

int Devices(int* count) noexcept {
  *count = 0;
  return Guarded("devices", [&] {
    const auto engine = EngineInUse();
    if (engine == nullptr) return NotStarted("devices");
    *count = static_cast<int>(engine->settings().devices);
    return int{abi::kSuccess};
  });
}

int GetProperties(int device, abi::PropertiesV12* properties) noexcept {
  return Guarded("getProperties", [&] {
    const auto engine = EngineInUse();
    if (engine == nullptr) return NotStarted("getProperties");
    if (auto known = CheckDevice(*engine, device); !known) return Fail(known.error());
    const Nic& nic = engine->nic();
    *properties = {};
    properties->name = Kept(device == 0 ? nic.name : fmt::format("{}-{}", nic.name, device));
    properties->pci_path = nic.pci_path.empty() ? nullptr : Kept(nic.pci_path);
    properties->guid = nic.guid;
    // NCCL then copies between GPU and host itself.
    properties->ptr_support = abi::kPointerHost;
    const int devices = static_cast<int>(engine->settings().devices);
    properties->speed =
        std::max(std::min(nic.megabits / devices, engine->settings().max_megabits), kMinMegabits);
    properties->latency = kLatency;
    properties->port = device;
    properties->max_comms = kMaxComms;
    properties->max_recvs = static_cast<int>(kMaxReceives);
    properties->device_type = abi::kDeviceTypeHost;
    properties->virtual_device.count = 1;
    properties->virtual_device.devices[0] = device;
    properties->max_p2p_bytes = kMaxMessageBytes;
    properties->max_coll_bytes = kMaxMessageBytes;
    properties->max_multi_request_size = 1;
    return int{abi::kSuccess};
  });
}

// ---- connections --------------------------------------------------------------------------------

int Listen(void* context, int device, void* handle, void** listen_comm) noexcept {
  *listen_comm = nullptr;
  return Guarded("listen", [&] {
    const Context* const one = ContextOf(context);
    if (const int wrong = CheckContext(one, "listen"); wrong != abi::kSuccess) return wrong;
    Engine& engine = *one->engine;
    if (auto known = CheckDevice(engine, device); !known) return Fail(known.error());
    auto pending_comms = engine.acceptor().Listen(one->swift);
    ListenAddress address;
    address.listen = pending_comms->id();
    address.key = pending_comms->key();
    address.rank = engine.settings().rank;
    address.at = engine.acceptor().told();
    if (auto written = WriteHandle(address, handle); !written) {
      engine.acceptor().Unlisten(pending_comms->id());
      return Fail(written.error());
    }
    *listen_comm =
        std::make_unique<ListenComm>(ListenComm{{}, one->engine, std::move(pending_comms)})
            .release();
    return int{abi::kSuccess};
  });
}

int Connect(void* context, int device, void* handle, void** send_comm) noexcept {
  *send_comm = nullptr;
  return Guarded("connect", [&] {
    Context* const one = ContextOf(context);
    if (const int wrong = CheckContext(one, "connect"); wrong != abi::kSuccess) return wrong;
    Engine& engine = *one->engine;
    if (auto known = CheckDevice(engine, device); !known) return Fail(known.error());
    // NCCL calls with the same memory until there is a comm or an error, so the number in it finds
    // the attempt again. It is a number and not a pointer, because the bytes come from outside.
    if (AttemptOf(handle) == 0) {
      auto begun = Attempt::Begin(&engine, one->swift, handle);
      if (!begun) return Fail(begun.error());
      SetAttempt(handle, engine.AddAttempt(one, *std::move(begun)));
    }
    const std::uint64_t number = AttemptOf(handle);
    const auto attempt = engine.FindAttempt(number);
    if (attempt == nullptr) {
      return Fail(
          Error(Code::kInvalidArgument,
                fmt::format("connect was given a handle of attempt {}, which has ended", number)));
    }
    auto comm = attempt->Poll();
    if (comm && *comm == nullptr) return int{abi::kSuccess};
    engine.DropAttempt(number);
    SetAttempt(handle, 0);
    if (!comm) return Fail(comm.error());
    *send_comm = std::make_unique<DataComm>(DataComm{{}, one->engine, *std::move(comm)}).release();
    return int{abi::kSuccess};
  });
}

int Accept(void* listen_comm, void** recv_comm) noexcept {
  *recv_comm = nullptr;
  return Guarded("accept", [&] {
    auto* const one = static_cast<ListenComm*>(listen_comm);
    if (IsOfParent(one)) return FailOfParent(kCommName);
    auto taken = one->pending_comms->Take();
    if (!taken) return Fail(taken.error());
    if (*taken == nullptr) {
      // NCCL polls, so the comm's loop makes progress on the calling thread.
      one->pending_comms->swift()->DriveOnce();
      return int{abi::kSuccess};
    }
    *recv_comm = std::make_unique<DataComm>(DataComm{{}, one->engine, *std::move(taken)}).release();
    return int{abi::kSuccess};
  });
}

int CloseListen(void* listen_comm) noexcept {
  return Guarded("closeListen", [&] {
    if (IsOfParent(static_cast<ListenComm*>(listen_comm))) return int{abi::kSuccess};
    const std::unique_ptr<ListenComm> closed(static_cast<ListenComm*>(listen_comm));
    if (closed != nullptr) closed->engine->acceptor().Unlisten(closed->pending_comms->id());
    return int{abi::kSuccess};
  });
}

int CloseSend(void* send_comm) noexcept { return CloseComm(send_comm); }
int CloseRecv(void* recv_comm) noexcept { return CloseComm(recv_comm); }

// ---- data ---------------------------------------------------------------------------------------

int RegMr(void* /*comm*/, void* data, std::size_t bytes, int kind, void** mr) noexcept {
  *mr = nullptr;
  return Guarded("regMr", [&] {
    if (kind != abi::kPointerHost) {
      return Fail(Error(
          Code::kUnsupported,
          fmt::format("memory of kind {} cannot be registered, only that of the host", kind)));
    }
    // Sockets need no registration; the region only says at its end which memory to forget.
    *mr = std::make_unique<MemoryRegion>(MemoryRegion{{static_cast<const std::byte*>(data), bytes}})
              .release();
    return int{abi::kSuccess};
  });
}

int DeregMr(void* comm, void* mr) noexcept {
  return Guarded("deregMr", [&] {
    const std::unique_ptr<MemoryRegion> region(static_cast<MemoryRegion*>(mr));
    auto* const one = static_cast<DataComm*>(comm);
    if (region != nullptr && one != nullptr && !IsOfParent(one)) {
      one->comm->Forget(region->memory);
    }
    return int{abi::kSuccess};
  });
}

int Isend(void* send_comm, void* data, std::size_t bytes, int tag, void** request) noexcept {
  *request = nullptr;
  return Guarded("isend", [&] {
    if (IsOfParent(static_cast<DataComm*>(send_comm))) return FailOfParent(kCommName);
    auto& comm = static_cast<SendComm&>(*static_cast<DataComm*>(send_comm)->comm);
    const auto sent = comm.Send({.data = {static_cast<const std::byte*>(data), bytes}, .tag = tag});
    if (!sent) return Fail(sent.error());
    *request = *sent;
    return int{abi::kSuccess};
  });
}

int Irecv(void* recv_comm, const Group<std::size_t>& group, void** request) noexcept {
  return ReceiveGroup(recv_comm, group, request);
}
int Irecv(void* recv_comm, const Group<int>& group, void** request) noexcept {
  return ReceiveGroup(recv_comm, group, request);
}

// Nothing to flush: host memory has the data when the request is done.
int Iflush(void* /*recv_comm*/, void** request) noexcept {
  *request = nullptr;
  return abi::kSuccess;
}

int Test(void* request, int* done, int* bytes) noexcept {
  *done = 0;
  return Guarded("test", [&] {
    auto* const one = static_cast<Request*>(request);
    if (one->comm->of_parent()) return FailOfParent("request");
    const auto tested = one->comm->Test(one);
    if (!tested) return Fail(tested.error());
    *done = tested->done ? 1 : 0;
    for (std::size_t i = 0; tested->done && bytes != nullptr && i < tested->count; ++i) {
      // The interface has an int for each size.
      bytes[i] = static_cast<int>(
          std::min<std::uint64_t>(tested->sizes[i], std::numeric_limits<int>::max()));
    }
    return int{abi::kSuccess};
  });
}

// These are hints that nothing here uses.
int SetNetAttr(void* /*context*/, void* /*attributes*/) noexcept { return abi::kSuccess; }

}  // namespace ferry::nccl_net
