// A network for NCCL that moves no bytes, for measuring what NCCL itself can reach.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>

#include "ferry/net/nccl_abi/abi_v10.h"

// libnccl-net-null.so. A message is done on both sides when it has been sent and its receive has
// been posted; the two processes see that in shared memory, so they must be on one machine. The
// data is wrong on purpose, and NCCL_PROTO must be Simple: with LL, the receiving GPU would wait
// for flags in the data. bench/nccl_collectives uses it as the net "null".
namespace ferry::nccl_net {
namespace {

namespace abi = net::nccl_abi;

constexpr std::size_t kSlots = 1024;  // more than messages in flight
constexpr int kMegabits = 100'000;
constexpr std::size_t kMaxBytes = std::size_t{1} << 30;

// The state of one comm, in a file that both processes map.
struct Shared {
  std::atomic<std::uint32_t> connected{0};
  std::atomic<std::uint64_t> sends{0};
  std::atomic<std::uint64_t> receives{0};
  std::array<std::atomic<std::uint64_t>, kSlots> bytes{};  // of a send
};

struct NullComm {
  Shared* shared = nullptr;
  bool sends = false;
};
struct NullListen {
  std::string name;
  Shared* shared = nullptr;
};
struct NullRequest {
  NullComm* comm = nullptr;
  std::uint64_t number = 0;
};

Shared* Map(const std::string& name, bool create) {
  const int fd = ::shm_open(name.c_str(), create ? O_RDWR | O_CREAT | O_EXCL : O_RDWR, 0600);
  if (fd < 0) return nullptr;
  void* memory = MAP_FAILED;
  if (!create || ::ftruncate(fd, sizeof(Shared)) == 0) {
    memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  (void)::close(fd);
  if (memory == MAP_FAILED) return nullptr;
  return create ? new (memory) Shared() : static_cast<Shared*>(memory);
}

int Init(abi::Logger /*logger*/, abi::ProfilerCallback /*profiler*/) { return abi::kSuccess; }

int Devices(int* count) {
  *count = 1;
  return abi::kSuccess;
}

int GetProperties(int /*device*/, abi::PropertiesV10* properties) {
  static std::string name = "null0";
  *properties = {};
  properties->name = name.data();
  properties->guid = 1;
  properties->ptr_support = abi::kPointerHost;
  properties->speed = kMegabits;
  properties->max_comms = 65536;
  properties->max_recvs = 1;
  properties->device_type = abi::kDeviceTypeHost;
  properties->virtual_device = {.count = 1, .devices = {0}};
  properties->max_p2p_bytes = kMaxBytes;
  properties->max_coll_bytes = kMaxBytes;
  return abi::kSuccess;
}

int Listen(int /*device*/, void* handle, void** listen_comm) {
  static std::atomic<unsigned> next{0};
  auto* const made = new NullListen();
  made->name = "/ferry_null_" + std::to_string(::getpid()) + "_" + std::to_string(next++);
  made->shared = Map(made->name, /*create=*/true);
  if (made->shared == nullptr) return abi::kSystemError;
  std::memset(handle, 0, abi::kHandleBytes);
  std::memcpy(handle, made->name.data(), made->name.size());
  *listen_comm = made;
  return abi::kSuccess;
}

int Connect(int /*device*/, abi::CommConfig* /*config*/, void* handle, void** send_comm,
            abi::DeviceHandle** /*device_handle*/) {
  Shared* const shared = Map(static_cast<const char*>(handle), /*create=*/false);
  if (shared == nullptr) return abi::kSystemError;
  *send_comm = new NullComm{shared, true};
  shared->connected.store(1);
  return abi::kSuccess;
}

int Accept(void* listen_comm, void** recv_comm, abi::DeviceHandle** /*device_handle*/) {
  Shared* const shared = static_cast<NullListen*>(listen_comm)->shared;
  *recv_comm = shared->connected.load() != 0 ? new NullComm{shared, false} : nullptr;
  return abi::kSuccess;
}

int RegMr(void* comm, void* /*data*/, std::size_t /*bytes*/, int /*kind*/, void** mr) {
  *mr = comm;
  return abi::kSuccess;
}
int DeregMr(void* /*comm*/, void* /*mr*/) { return abi::kSuccess; }

// NOLINTBEGIN(readability-function-size): NCCL's parameters
int Isend(void* send_comm, void* /*data*/, std::size_t bytes, int /*tag*/, void* /*mr*/,
          void* /*event*/, void** request) {
  auto* const comm = static_cast<NullComm*>(send_comm);
  const std::uint64_t number = comm->shared->sends.load(std::memory_order_relaxed);
  comm->shared->bytes[number % kSlots].store(bytes, std::memory_order_relaxed);
  comm->shared->sends.store(number + 1, std::memory_order_release);
  *request = new NullRequest{comm, number};
  return abi::kSuccess;
}

int Irecv(void* recv_comm, int /*count*/, void** /*data*/, std::size_t* /*bytes*/, int* /*tags*/,
          void** /*mrs*/, void** /*events*/, void** request) {
  auto* const comm = static_cast<NullComm*>(recv_comm);
  const std::uint64_t number = comm->shared->receives.load(std::memory_order_relaxed);
  comm->shared->receives.store(number + 1, std::memory_order_release);
  *request = new NullRequest{comm, number};
  return abi::kSuccess;
}

int Iflush(void* /*comm*/, int /*count*/, void** /*data*/, int* /*bytes*/, void** /*mrs*/,
           void** request) {
  *request = nullptr;
  return abi::kSuccess;
}
// NOLINTEND(readability-function-size)

int Test(void* request, int* done, int* bytes) {
  auto* const one = static_cast<NullRequest*>(request);
  const Shared& shared = *one->comm->shared;
  const auto& others = one->comm->sends ? shared.receives : shared.sends;
  *done = others.load(std::memory_order_acquire) > one->number ? 1 : 0;
  if (*done == 0) return abi::kSuccess;
  if (bytes != nullptr) *bytes = static_cast<int>(shared.bytes[one->number % kSlots].load());
  delete one;
  return abi::kSuccess;
}

int CloseComm(void* comm) {
  delete static_cast<NullComm*>(comm);  // the memory stays mapped: the other side may use it
  return abi::kSuccess;
}

int CloseListen(void* listen_comm) {
  auto* const one = static_cast<NullListen*>(listen_comm);
  (void)::shm_unlink(one->name.c_str());
  delete one;
  return abi::kSuccess;
}

}  // namespace
}  // namespace ferry::nccl_net

extern "C" {
// NOLINTNEXTLINE(readability-identifier-naming): NCCL's name
__attribute__((visibility("default"))) ferry::net::nccl_abi::TableV10 ncclNetPlugin_v10 = {
    .name = "Null",
    .init = ferry::nccl_net::Init,
    .devices = ferry::nccl_net::Devices,
    .get_properties = ferry::nccl_net::GetProperties,
    .listen = ferry::nccl_net::Listen,
    .connect = ferry::nccl_net::Connect,
    .accept = ferry::nccl_net::Accept,
    .reg_mr = ferry::nccl_net::RegMr,
    .reg_mr_dma_buf = nullptr,
    .dereg_mr = ferry::nccl_net::DeregMr,
    .isend = ferry::nccl_net::Isend,
    .irecv = ferry::nccl_net::Irecv,
    .iflush = ferry::nccl_net::Iflush,
    .test = ferry::nccl_net::Test,
    .close_send = ferry::nccl_net::CloseComm,
    .close_recv = ferry::nccl_net::CloseComm,
    .close_listen = ferry::nccl_net::CloseListen,
    .get_device_mr = nullptr,
    .irecv_consumed = nullptr,
    .make_virtual_device = nullptr,
};
}
