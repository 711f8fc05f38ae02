// NCCL's network plugin interface, version 7.
#pragma once
#include <cstddef>
#include <cstdint>

#include "ferry/net/nccl_abi/abi.h"

// Version 7, loaded by NCCL 2.19 to 2.30, and exported by GPUDirect-TCPX. Adds device offload:
// device handles, getDeviceMr, irecvConsumed.
namespace ferry::net::nccl_abi {

struct PropertiesV7 {
  char* name = nullptr;      // the interface's: "eth1"
  char* pci_path = nullptr;  // under /sys, or null
  std::uint64_t guid = 0;    // the same for ports of one card
  int ptr_support = 0;       // bits kPointer…
  int speed = 0;             // Mbit/s
  int port = 0;
  float latency = 0;  // µs
  int max_comms = 0;
  int max_recvs = 0;    // receives that one irecv() may group
  int device_type = 0;  // kDeviceType…
  int device_version = 0;
};
static_assert(sizeof(PropertiesV7) == 56 && offsetof(PropertiesV7, ptr_support) == 24 &&
              offsetof(PropertiesV7, speed) == 28 && offsetof(PropertiesV7, port) == 32 &&
              offsetof(PropertiesV7, latency) == 36 && offsetof(PropertiesV7, max_comms) == 40 &&
              offsetof(PropertiesV7, max_recvs) == 44 &&
              offsetof(PropertiesV7, device_type) == 48 &&
              offsetof(PropertiesV7, device_version) == 52);

// The tables of versions 7 and 8, which differ in their properties and in the size of
// registrations.
template <int kNumber, class Its, class RegisteredBytes>
struct TableWithDevices {
  static constexpr int kVersion = kNumber;
  using Properties = Its;

  const char* name;
  int (*init)(Logger logger);
  int (*devices)(int* count);
  int (*get_properties)(int device, Its* properties);
  int (*listen)(int device, void* handle, void** listen_comm);
  int (*connect)(int device, void* handle, void** send_comm, DeviceHandle** device_handle);
  int (*accept)(void* listen_comm, void** recv_comm, DeviceHandle** device_handle);
  int (*reg_mr)(void* comm, void* data, RegisteredBytes bytes, int kind, void** mr);
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
using TableV7 = TableWithDevices<7, PropertiesV7, int>;
static_assert(sizeof(TableV7) == 152 && offsetof(TableV7, test) == 104 &&
              offsetof(TableV7, irecv_consumed) == 144);

}  // namespace ferry::net::nccl_abi
