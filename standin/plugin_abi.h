// Version 7 of NCCL's network plugin interface as a plugin sees it. Written for the stand-in from
// the description of NCCL's plugin headers and not shared with ferry/tcpx, which drives it,
// so that a wrong offset on one side shows as a mismatch. Offsets are for LP64.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ferry::standin::abi {

// ncclResult_t, as far as the stand-in returns it.
enum Outcome : int {
  kSuccess = 0,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
};

// ncclDebugLogLevel.
enum LogLevel : int { kLogWarn = 2, kLogInfo = 3 };
using Logger = void (*)(int level, unsigned long flags, const char* file, int line,
                        const char* format, ...);

inline constexpr std::size_t kHandleBytes = 128;  // NCCL_NET_HANDLE_MAXSIZE
inline constexpr int kPointerHost = 0x1;          // NCCL_PTR_HOST
inline constexpr int kPointerCuda = 0x2;          // NCCL_PTR_CUDA
inline constexpr int kDeviceTypeUnpack = 1;       // NCCL_NET_DEVICE_UNPACK
inline constexpr int kDeviceVersionUnpack = 0x7;  // NCCL_NET_DEVICE_UNPACK_VERSION

// ncclNetDeviceHandle_v7_t.
struct DeviceHandle {
  std::int32_t type = 0;
  std::int32_t version = 0;
  void* handle = nullptr;
  std::uint64_t size = 0;
  std::int32_t needs_proxy_progress = 0;
  std::int32_t padding = 0;
};
static_assert(sizeof(DeviceHandle) == 32);
static_assert(offsetof(DeviceHandle, type) == 0);
static_assert(offsetof(DeviceHandle, version) == 4);
static_assert(offsetof(DeviceHandle, handle) == 8);
static_assert(offsetof(DeviceHandle, size) == 16);
static_assert(offsetof(DeviceHandle, needs_proxy_progress) == 24);

// ncclNetProperties_v7_t.
struct PropertiesV7 {
  char* name = nullptr;
  char* pci_path = nullptr;
  std::uint64_t guid = 0;
  std::int32_t ptr_support = 0;
  std::int32_t speed = 0;
  std::int32_t port = 0;
  float latency = 0;
  std::int32_t max_comms = 0;
  std::int32_t max_recvs = 0;
  std::int32_t device_type = 0;
  std::int32_t device_version = 0;
};
static_assert(sizeof(PropertiesV7) == 56);
static_assert(offsetof(PropertiesV7, name) == 0);
static_assert(offsetof(PropertiesV7, pci_path) == 8);
static_assert(offsetof(PropertiesV7, guid) == 16);
static_assert(offsetof(PropertiesV7, ptr_support) == 24);
static_assert(offsetof(PropertiesV7, speed) == 28);
static_assert(offsetof(PropertiesV7, port) == 32);
static_assert(offsetof(PropertiesV7, latency) == 36);
static_assert(offsetof(PropertiesV7, max_comms) == 40);
static_assert(offsetof(PropertiesV7, max_recvs) == 44);
static_assert(offsetof(PropertiesV7, device_type) == 48);
static_assert(offsetof(PropertiesV7, device_version) == 52);

// ncclNet_v7_t: 19 pointers.
struct TableV7 {
  const char* name;
  int (*init)(Logger logger);
  int (*devices)(int* count);
  int (*get_properties)(int device, PropertiesV7* properties);
  int (*listen)(int device, void* handle, void** listen_comm);
  int (*connect)(int device, void* handle, void** send_comm, DeviceHandle** device_handle);
  int (*accept)(void* listen_comm, void** recv_comm, DeviceHandle** device_handle);
  int (*reg_mr)(void* comm, void* data, int bytes, int kind, void** mr);
  int (*reg_mr_dma_buf)(void* comm, void* data, std::size_t bytes, int kind, std::uint64_t offset,
                        int fd, void** mr);
  int (*dereg_mr)(void* comm, void* mr);
  int (*isend)(void* send_comm, void* data, int bytes, int tag, void* mr, void** request);
  int (*irecv)(void* recv_comm, int count, void** data, int* bytes, int* tags, void** mrs,
               void** request);
  int (*iflush)(void* recv_comm, int count, void** data, int* bytes, void** mrs, void** request);
  int (*test)(void* request, int* done, int* bytes);
  int (*close_send)(void* send_comm);
  int (*close_recv)(void* recv_comm);
  int (*close_listen)(void* listen_comm);
  int (*get_device_mr)(void* comm, void* mr, void** device_mr);
  int (*irecv_consumed)(void* recv_comm, int count, void* request);
};
static_assert(sizeof(TableV7) == 152);
static_assert(offsetof(TableV7, init) == 8);
static_assert(offsetof(TableV7, devices) == 16);
static_assert(offsetof(TableV7, get_properties) == 24);
static_assert(offsetof(TableV7, listen) == 32);
static_assert(offsetof(TableV7, connect) == 40);
static_assert(offsetof(TableV7, accept) == 48);
static_assert(offsetof(TableV7, reg_mr) == 56);
static_assert(offsetof(TableV7, reg_mr_dma_buf) == 64);
static_assert(offsetof(TableV7, dereg_mr) == 72);
static_assert(offsetof(TableV7, isend) == 80);
static_assert(offsetof(TableV7, irecv) == 88);
static_assert(offsetof(TableV7, iflush) == 96);
static_assert(offsetof(TableV7, test) == 104);
static_assert(offsetof(TableV7, close_send) == 112);
static_assert(offsetof(TableV7, close_recv) == 120);
static_assert(offsetof(TableV7, close_listen) == 128);
static_assert(offsetof(TableV7, get_device_mr) == 136);
static_assert(offsetof(TableV7, irecv_consumed) == 144);

}  // namespace ferry::standin::abi
