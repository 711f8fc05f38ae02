// The function table that a host finds by dlsym. It converts the host's pointers to objects and
// rejects those that are unknown or closed.

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <string>

#include "standin/connecting.h"
#include "standin/plugin_abi.h"

namespace ferry::standin {
namespace {

// The tables are never destroyed: the host's threads may call while the process ends.
Kept<Dial>& Dials() {
  static auto* const dials = new Kept<Dial>;
  return *dials;
}
Kept<ListenComm>& ListenComms() {
  static auto* const comms = new Kept<ListenComm>;
  return *comms;
}
Kept<Comm>& Comms() {
  static auto* const comms = new Kept<Comm>;
  return *comms;
}

// Runs `body` with the engine; no exception leaves it.
template <class Body>
int WithEngine(const char* call, Body body) noexcept {
  Engine* const engine = Engine::Running();
  if (engine == nullptr) return Misuse("%s before init", call);
  try {
    return body(*engine);
  } catch (const std::exception& error) {
    Log(abi::kLogWarn, "standin: %s: %s", call, error.what());
    return abi::kSystemError;
  }
}

// Runs `body` with the comm if the pointer is a live comm that no other thread is using.
template <class Body>
int WithComm(const char* call, const void* pointer, Body body) noexcept {
  return WithEngine(call, [&](Engine&) {
    Comm* const comm = Comms().Find(pointer);
    if (comm == nullptr) return Misuse("%s with what is no comm", call);
    // Before closed() is read: the other thread may be the one that closes the comm.
    if (!comm->Enter()) return Misuse("%s while another call of the same comm runs", call);
    // Also where `body` throws.
    const std::unique_ptr<Comm, void (*)(Comm*)> leaving(comm, [](Comm* one) { one->Leave(); });
    return comm->closed() ? Misuse("%s with a comm that was closed", call) : body(*comm);
  });
}

template <class Kind, class Body>
int WithKind(const char* call, const void* pointer, Body body) noexcept {
  return WithComm(call, pointer, [&](Comm& comm) {
    auto* const one = dynamic_cast<Kind*>(&comm);
    return one == nullptr ? Misuse("%s with a comm of the other direction", call) : body(*one);
  });
}

int Init(abi::Logger logger) {
  if (logger == nullptr) return abi::kInvalidArgument;
  return Engine::Start(logger);
}

int Devices(int* count) {
  return WithEngine("devices", [&](Engine& engine) -> int {
    const Settings& settings = engine.settings();
    *count = settings.fault == Fault::kNoDevices ? 0 : settings.nics;
    return abi::kSuccess;
  });
}

bool IsDevice(Engine& engine, int device) { return device >= 0 && device < engine.settings().nics; }

int GetProperties(int device, abi::PropertiesV7* properties) {
  struct Names {
    char name[24];
    char path[64];
  };
  // NCCL keeps the pointers for as long as the plugin is loaded.
  static Names names[8];
  return WithEngine("getProperties", [&](Engine& engine) {
    if (!IsDevice(engine, device)) return Misuse("getProperties of device %d", device);
    static const bool written = [] {
      for (int i = 0; i < 8; ++i) {
        (void)std::snprintf(names[i].name, sizeof(names[i].name), "standin%d", i);
        (void)std::snprintf(names[i].path, sizeof(names[i].path),
                            "/sys/devices/pci0000:%02x/0000:%02x:00.0", i, i);
      }
      return true;
    }();
    (void)written;
    *properties = {.name = names[device].name,
                   .pci_path = names[device].path,
                   .guid = static_cast<std::uint64_t>(device),
                   .ptr_support = abi::kPointerHost | abi::kPointerCuda,
                   .speed = 100'000,
                   .max_comms = 65'536,
                   .max_recvs = 1,
                   .device_type = abi::kDeviceTypeUnpack,
                   .device_version = abi::kDeviceVersionUnpack};
    return int{abi::kSuccess};
  });
}

int Listen(int device, void* handle, void** listen_comm) {
  return WithEngine("listen", [&](Engine& engine) -> int {
    *listen_comm = nullptr;
    if (!IsDevice(engine, device)) return Misuse("listen on device %d", device);
    const int gpu = engine.memory().CurrentDevice();
    if (gpu < 0) return Misuse("listen without a current GPU");
    Handle written;
    auto comm = ListenComm::Make(engine, gpu, &written);
    if (comm == nullptr) return abi::kSystemError;
    // The host sends all 128 bytes to the other process, so none may be indeterminate.
    std::memset(handle, 0, abi::kHandleBytes);
    std::memcpy(handle, static_cast<const void*>(&written), sizeof(written));
    *listen_comm = ListenComms().Add(std::move(comm));
    return abi::kSuccess;
  });
}

// The state of a connection that a handle stands for; null after a misuse.
Dial* DialOf(Engine& engine, void* memory) {
  Handle handle;
  std::memcpy(static_cast<void*>(&handle), memory, sizeof(handle));
  const std::uint64_t id = handle.rendezvous.id;
  if (handle.magic != Handle::kMagic) {
    (void)Misuse("connect with what listen has not written");
    return nullptr;
  }
  if (handle.dial != nullptr) {
    // The bytes come from the host, perhaps from another process: the pointer is looked up before
    // it is used, and must belong to this very memory.
    Dial* const dial = Dials().Find(handle.dial);
    if (dial != nullptr && dial->IsOf(memory, id)) return dial;
    (void)Misuse("connect with a handle whose private state belongs to other memory");
    return nullptr;
  }
  if (Dials().FindIf([id](const Dial& dial) { return dial.id() == id; }) != nullptr) {
    (void)Misuse("connect with a fresh copy of a handle that is in use");
    return nullptr;
  }
  const int gpu = engine.memory().CurrentDevice();
  if (gpu < 0) {
    (void)Misuse("connect without a current GPU");
    return nullptr;
  }
  Dial* const dial = Dials().Add(std::make_unique<Dial>(memory, id, gpu));
  dial->Start(engine, handle.rendezvous);
  handle.dial = dial;
  std::memcpy(memory, static_cast<const void*>(&handle), sizeof(handle));
  return dial;
}

int Connect(int device, void* handle, void** send_comm, abi::DeviceHandle** /*device_handle*/) {
  return WithEngine("connect", [&](Engine& engine) -> int {
    *send_comm = nullptr;
    if (!IsDevice(engine, device)) return Misuse("connect on device %d", device);
    Dial* const dial = DialOf(engine, handle);
    if (dial == nullptr) return abi::kInternalError;
    std::unique_ptr<Comm> comm;
    const int rc = dial->Poll(engine, &comm);
    if (comm != nullptr) *send_comm = Comms().Add(std::move(comm));
    return rc;
  });
}

int Accept(void* listen_comm, void** recv_comm, abi::DeviceHandle** device_handle) {
  return WithEngine("accept", [&](Engine& engine) -> int {
    *recv_comm = nullptr;
    ListenComm* const listening = ListenComms().Find(listen_comm);
    if (listening == nullptr) return Misuse("accept with what is no listen comm");
    if (device_handle == nullptr || *device_handle == nullptr) {
      return Misuse("accept without memory for the device handle");
    }
    std::unique_ptr<RecvComm> comm;
    const int rc = listening->Poll(engine, &comm);
    if (comm == nullptr) return rc;
    **device_handle = comm->Handle();
    *recv_comm = Comms().Add(std::move(comm));
    return abi::kSuccess;
  });
}

int RegMr(void* comm, void* data, int bytes, int kind, void** mr) {
  *mr = nullptr;
  if (bytes < 0) return Misuse("regMr of %d bytes", bytes);
  return WithComm("regMr", comm, [&](Comm& one) {
    return one.Register(data, static_cast<std::size_t>(bytes), kind, mr);
  });
}

int DeregMr(void* comm, void* mr) {
  return WithComm("deregMr", comm, [&](Comm& one) { return one.Deregister(mr); });
}

// NOLINTNEXTLINE(readability-function-size): the interface's
int Isend(void* send_comm, void* data, int bytes, int /*tag*/, void* mr, void** request) {
  *request = nullptr;
  const Posting posting = {static_cast<std::byte*>(data), bytes, mr};
  return WithKind<SendComm>("isend", send_comm,
                            [&](SendComm& comm) { return comm.Send(posting, request); });
}

// NOLINTNEXTLINE(readability-function-size): the interface's
int Irecv(void* recv_comm, int count, void** data, int* bytes, int* /*tags*/, void** mrs,
          void** request) {
  *request = nullptr;
  if (count != 1) return Misuse("irecv of %d buffers", count);
  const Posting posting = {static_cast<std::byte*>(data[0]), bytes[0], mrs[0]};
  return WithKind<RecvComm>("irecv", recv_comm,
                            [&](RecvComm& comm) { return comm.Receive(posting, request); });
}

// The original takes request[0] for a request that is there.
// NOLINTNEXTLINE(readability-function-size): the interface's
int Iflush(void* /*recv_comm*/, int /*count*/, void** /*data*/, int* /*bytes*/, void** /*mrs*/,
           void** /*request*/) {
  return Misuse("iflush");
}

// Leaves *bytes alone, as for receives that are unpacked on the device.
int Test(void* request, int* done, int* /*bytes*/) {
  *done = 0;
  if (request == nullptr) return Misuse("test of no request");
  auto* const one = static_cast<tcpx::Request*>(request);
  return WithComm("test", one->comm, [&](Comm& comm) { return comm.Test(one, done); });
}

int CloseComm(void* comm) {
  return WithComm("close", comm, [](Comm& one) {
    one.Close();
    return int{abi::kSuccess};
  });
}

int CloseListen(void* listen_comm) {
  return WithEngine("closeListen", [&](Engine&) {
    ListenComm* const listening = ListenComms().Find(listen_comm);
    return listening == nullptr ? Misuse("closeListen of what is no listen comm")
                                : listening->Close();
  });
}

int GetDeviceMr(void* comm, void* mr, void** device_mr) {
  *device_mr = mr;
  return WithComm("getDeviceMr", comm, [](Comm&) { return int{abi::kSuccess}; });
}

int IrecvConsumed(void* recv_comm, int count, void* request) {
  if (count != 1) return Misuse("irecvConsumed of %d buffers", count);
  return WithKind<RecvComm>("irecvConsumed", recv_comm,
                            [&](RecvComm& comm) { return comm.Consumed(request); });
}

}  // namespace
}  // namespace ferry::standin

// The name in NCCL's ncclNet_v7_t; a host reads it before init(), so the variable is read at load.
extern "C" {
// NOLINTNEXTLINE(readability-identifier-naming): NCCL's name
__attribute__((visibility("default"))) ferry::standin::abi::TableV7 ncclNetPlugin_v7 = {
    .name = ferry::standin::PluginName(),
    .init = ferry::standin::Init,
    .devices = ferry::standin::Devices,
    .get_properties = ferry::standin::GetProperties,
    .listen = ferry::standin::Listen,
    .connect = ferry::standin::Connect,
    .accept = ferry::standin::Accept,
    .reg_mr = ferry::standin::RegMr,
    .reg_mr_dma_buf = nullptr,
    .dereg_mr = ferry::standin::DeregMr,
    .isend = ferry::standin::Isend,
    .irecv = ferry::standin::Irecv,
    .iflush = ferry::standin::Iflush,
    .test = ferry::standin::Test,
    .close_send = ferry::standin::CloseComm,
    .close_recv = ferry::standin::CloseComm,
    .close_listen = ferry::standin::CloseListen,
    .get_device_mr = ferry::standin::GetDeviceMr,
    .irecv_consumed = ferry::standin::IrecvConsumed,
};
}
