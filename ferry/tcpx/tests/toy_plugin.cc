// Plugins of the versions TOY_V<N>, which do nothing and note what they are asked. Each writes a
// line for each call into the file that TOY_LOG names, fails in the call that TOY_FAIL names, and
// gives no request or comm in the one that TOY_NULL names. With TOY_STATE its connect() follows a
// pointer in the handle, as plugins do that keep the state of a connect there. With TOY_HOST none
// of them unpacks. With TOY_WATCH_EXIT, a call after the destructors of static objects ends the
// process with status 3.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include "ferry/net/nccl_abi/abi_v10.h"
#include "ferry/net/nccl_abi/abi_v11.h"
#include "ferry/net/nccl_abi/abi_v12.h"
#include "ferry/net/nccl_abi/abi_v5.h"
#include "ferry/net/nccl_abi/abi_v6.h"
#include "ferry/net/nccl_abi/abi_v7.h"
#include "ferry/net/nccl_abi/abi_v8.h"
#include "ferry/net/nccl_abi/abi_v9.h"
#include "ferry/tcpx/host/tcpx_layout.h"

namespace {

namespace abi = ferry::net::nccl_abi;
namespace layout = ferry::tcpx::layout;

constexpr std::uint64_t kGuid = 0x1122334455667788;
constexpr int kSpeed = 200'000;
char name_of_nic[] = "toy0";
char path_of_nic[] = "/sys/devices/toy";

std::atomic<bool> watches_exit{false};

struct WatchesExit {
  ~WatchesExit() {
    if (std::getenv("TOY_WATCH_EXIT") == nullptr) return;
    watches_exit = true;
    // Time for calls of a host that goes on.
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  }
} watch_of_exit;

int Note(const char* call, const std::string& what = {}) {
  if (watches_exit) _exit(3);
  if (const char* const path = std::getenv("TOY_LOG"); path != nullptr) {
    std::ofstream(path, std::ios::app) << call << ' ' << what << '\n';
  }
  const char* const fail = std::getenv("TOY_FAIL");
  return fail != nullptr && std::strcmp(fail, call) == 0 ? abi::kSystemError : abi::kSuccess;
}

std::string IsOurs(const void* comm) { return comm == &name_of_nic ? "1" : "0"; }

int Devices(int* count) {
  const char* const text = std::getenv("TOY_DEVICES");
  *count = text == nullptr ? 1 : std::atoi(text);
  return Note("devices");
}

template <class Properties>
int GetProperties(int device, Properties* properties) {
  properties->name = name_of_nic;
  properties->pci_path = path_of_nic;
  properties->guid = kGuid;
  properties->ptr_support = abi::kPointerHost | abi::kPointerCuda;
  properties->speed = kSpeed;
  properties->port = 3;
  properties->latency = 1.5F;
  properties->max_comms = 70'000;
  properties->max_recvs = 2;
  if constexpr (requires { properties->device_type; }) {
    const bool unpacks = std::getenv("TOY_HOST") == nullptr;
    properties->device_type = unpacks ? abi::kDeviceTypeUnpack : abi::kDeviceTypeHost;
    properties->device_version = unpacks ? abi::kDeviceVersionUnpack : 0;
  }
  if constexpr (requires { properties->max_p2p_bytes; }) {
    properties->max_p2p_bytes = std::size_t{1} << 33;
  }
  return Note("getProperties", std::to_string(device));
}

template <class Size>
int RegMr(void* /*comm*/, void* /*data*/, Size bytes, int kind, void** mr) {
  *mr = &name_of_nic;
  return Note("regMr", std::to_string(bytes) + " kind " + std::to_string(kind));
}

int Begin(const char* call, std::size_t bytes, int tag, void* mr, void** request) {
  const char* const none = std::getenv("TOY_NULL");
  *request = none != nullptr && std::strcmp(none, call) == 0 ? nullptr : &path_of_nic;
  return Note(call, std::to_string(bytes) + " tag " + std::to_string(tag) + " mr " + IsOurs(mr));
}

int OneComm(const char* call, void* comm) { return Note(call, IsOurs(comm)); }

int MakeComm(const char* call, int device, void** comm) {
  const char* const none = std::getenv("TOY_NULL");
  *comm = none != nullptr && std::strcmp(none, call) == 0 ? nullptr : &name_of_nic;
  return Note(call, "device " + std::to_string(device));
}

// Handles of listen() are zeros, so a pointer in one is state of an earlier connect().
void UseStateIn(void* handle) {
  if (std::getenv("TOY_STATE") == nullptr) return;
  int* stage = nullptr;
  std::memcpy(&stage, handle, sizeof stage);
  if (stage != nullptr) ++*stage;
}

// All that comes is of no bytes.
layout::UnpackMeta rows_of_toy;
std::byte pool_of_toy[64];
layout::UnpackHandle unpack_of_toy{&rows_of_toy, pool_of_toy, ~std::uint64_t{0}};

int Accept(void* /*listen*/, void** comm, abi::DeviceHandle** handle) {
  const bool unpacks = std::getenv("TOY_HOST") == nullptr;
  if (handle == nullptr || (*handle != nullptr) != unpacks) return abi::kInvalidArgument;
  if (!unpacks) return MakeComm("accept", 0, comm);
  (*handle)->handle = &unpack_of_toy;
  (*handle)->size = sizeof unpack_of_toy;
  return MakeComm("accept", (*handle)->type, comm);
}

int context_of_toy = 0;

// Parts that many versions share.
template <class Table>
constexpr Table Common() {
  constexpr int kVersion = Table::kVersion;
  using Properties = typename Table::Properties;
  Table table{};
  table.name = "Toy";
  table.devices = Devices;
  table.get_properties = GetProperties<Properties>;
  table.dereg_mr = [](void* comm, void* /*mr*/) { return OneComm("deregMr", comm); };
  table.iflush = [](void* /*comm*/, int /*count*/, void** /*data*/, int* bytes, void** /*mrs*/,
                    void** request) {
    *request = nullptr;
    return Note("iflush", std::to_string(*bytes));
  };
  table.test = [](void* /*request*/, int* done, int* bytes) {
    *done = 1;
    if (bytes != nullptr) *bytes = 77;
    return Note("test");
  };
  table.close_send = [](void* comm) { return OneComm("closeSend", comm); };
  table.close_recv = [](void* comm) { return OneComm("closeRecv", comm); };
  table.close_listen = [](void* comm) { return OneComm("closeListen", comm); };
  if constexpr (kVersion >= 7) {
    table.accept = Accept;
    table.irecv_consumed = [](void* comm, int count, void* /*request*/) {
      return Note("irecvConsumed", std::to_string(count) + " " + IsOurs(comm));
    };
  } else {
    table.accept = [](void* /*listen*/, void** comm) { return MakeComm("accept", 0, comm); };
  }
  if constexpr (kVersion >= 8) {
    table.reg_mr = RegMr<std::size_t>;
  } else {
    table.reg_mr = RegMr<int>;
  }
  if constexpr (kVersion >= 10) {
    table.isend = [](void* /*comm*/, void* /*data*/, std::size_t bytes, int tag, void* mr,
                     void* event, void** request) {
      return event != nullptr ? 4 : Begin("isend", bytes, tag, mr, request);
    };
    table.irecv = [](void* /*comm*/, int count, void** /*data*/, std::size_t* bytes, int* tags,
                     void** mrs, void** events, void** request) {
      return count != 1 || events == nullptr ? 4 : Begin("irecv", *bytes, *tags, *mrs, request);
    };
  }
  if constexpr (kVersion <= 10) {
    table.listen = [](int device, void* /*handle*/, void** comm) {
      return MakeComm("listen", device, comm);
    };
  }
  return table;
}

template <class Table>
constexpr Table UpToV9() {
  auto table = Common<Table>();
  table.init = [](abi::Logger logger) {
    logger(abi::kLogWarn, 0, "toy.cc", 1, "toy of version %d says %s", Table::kVersion, "hello");
    return Note("init");
  };
  if constexpr (Table::kVersion >= 7) {
    table.connect = [](int device, void* to, void** comm, abi::DeviceHandle** handle) {
      UseStateIn(to);
      if (handle == nullptr || *handle != nullptr) return static_cast<int>(abi::kInvalidArgument);
      return MakeComm("connect", device, comm);
    };
  } else {
    table.connect = [](int device, void* /*handle*/, void** comm) {
      return MakeComm("connect", device, comm);
    };
  }
  if constexpr (Table::kVersion >= 9) {
    table.isend = [](void* /*comm*/, void* /*data*/, std::size_t bytes, int tag, void* mr,
                     void** request) { return Begin("isend", bytes, tag, mr, request); };
    table.irecv = [](void* /*comm*/, int count, void** /*data*/, std::size_t* bytes, int* tags,
                     void** mrs, void** request) {
      return count != 1 ? 4 : Begin("irecv", *bytes, *tags, *mrs, request);
    };
  } else {
    table.isend = [](void* /*comm*/, void* /*data*/, int bytes, int tag, void* mr, void** request) {
      return Begin("isend", static_cast<std::size_t>(bytes), tag, mr, request);
    };
    table.irecv = [](void* /*comm*/, int count, void** /*data*/, int* bytes, int* tags, void** mrs,
                     void** request) {
      return count != 1 ? 4
                        : Begin("irecv", static_cast<std::size_t>(*bytes), *tags, *mrs, request);
    };
  }
  return table;
}

[[maybe_unused]] constexpr abi::TableV10 MakeV10() {
  auto table = Common<abi::TableV10>();
  table.init = [](abi::Logger /*logger*/, abi::ProfilerCallback profiler) {
    return profiler == nullptr ? 4 : Note("init");
  };
  table.connect = [](int device, abi::CommConfig* config, void* /*handle*/, void** comm,
                     abi::DeviceHandle** handle) {
    return config == nullptr || *handle != nullptr ? 4 : MakeComm("connect", device, comm);
  };
  return table;
}

template <class Table>
constexpr Table FromV11On() {
  auto newer = Common<Table>();
  newer.init = [](void** context, std::uint64_t /*comm*/, abi::CommConfig* config,
                  abi::Logger /*logger*/, abi::ProfilerCallback profiler) {
    if (profiler == nullptr) return static_cast<int>(abi::kInvalidArgument);
    *context = &context_of_toy;
    return Note("init", "traffic class " + std::to_string(config->traffic_class));
  };
  newer.listen = [](void* context, int device, void* /*handle*/, void** comm) {
    return context != &context_of_toy ? 4 : MakeComm("listen", device, comm);
  };
  newer.connect = [](void* context, int device, void* /*handle*/, void** comm,
                     abi::DeviceHandle** handle) {
    return context != &context_of_toy || *handle != nullptr ? 4 : MakeComm("connect", device, comm);
  };
  newer.finalize = [](void* context) {
    return Note("finalize", context == &context_of_toy ? "1" : "0");
  };
  return newer;
}

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): NCCL's names
#define TOY_EXPORT_ __attribute__((visibility("default")))

// As a plugin of C would have them.
extern "C" {
TOY_EXPORT_ unsigned long long ferry_net_pool_bytes(const void* /*pool*/) {
  return sizeof pool_of_toy;
}
#ifdef TOY_V4
TOY_EXPORT_ int ncclNetPlugin_v4 = 0;
#endif
#ifdef TOY_V5
TOY_EXPORT_ auto ncclNetPlugin_v5 = UpToV9<abi::TableV5>();
#endif
#ifdef TOY_V6
TOY_EXPORT_ auto ncclNetPlugin_v6 = UpToV9<abi::TableV6>();
#endif
#ifdef TOY_V7
TOY_EXPORT_ auto ncclNetPlugin_v7 = UpToV9<abi::TableV7>();
#endif
#ifdef TOY_V8
TOY_EXPORT_ auto ncclNetPlugin_v8 = UpToV9<abi::TableV8>();
#endif
#ifdef TOY_V9
TOY_EXPORT_ auto ncclNetPlugin_v9 = UpToV9<abi::TableV9>();
#endif
#ifdef TOY_V10
TOY_EXPORT_ auto ncclNetPlugin_v10 = MakeV10();
#endif
#ifdef TOY_V11
TOY_EXPORT_ auto ncclNetPlugin_v11 = FromV11On<abi::TableV11>();
#endif
#ifdef TOY_V12
TOY_EXPORT_ auto ncclNetPlugin_v12 = FromV11On<abi::TableV12>();
#endif
#ifdef TOY_V13
TOY_EXPORT_ int ncclNetPlugin_v13 = 0;
#endif
}
// NOLINTEND(readability-identifier-naming)
