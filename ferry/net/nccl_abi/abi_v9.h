// NCCL's network plugin interface, version 9.
#pragma once
#include <cstddef>
#include <cstdint>

#include "ferry/net/nccl_abi/abi.h"

// Version 9, loaded by NCCL 2.24 to 2.30. Adds force_flush in the middle of the properties and
// virtual devices; sizes of messages are size_t.
namespace ferry::net::nccl_abi {

struct PropertiesV9 {
  char* name = nullptr;      // the interface's: "eth1"
  char* pci_path = nullptr;  // under /sys, or null
  std::uint64_t guid = 0;    // the same for ports of one card
  int ptr_support = 0;       // bits kPointer…
  int reg_is_global = 0;     // registrations serve all comms
  int force_flush = 0;
  int speed = 0;  // Mbit/s
  int port = 0;
  float latency = 0;  // µs
  int max_comms = 0;
  int max_recvs = 0;    // receives that one irecv() may group
  int device_type = 0;  // kDeviceType…
  int device_version = 0;
  VirtualDevice<4> virtual_device;
  std::size_t max_p2p_bytes = 0;  // of one isend()
  std::size_t max_coll_bytes = 0;
};
// From v9 on the properties begin alike.
template <class P>
inline constexpr bool kBeginsAsV9 = offsetof(P, ptr_support) == 24 &&
                                    offsetof(P, reg_is_global) == 28 &&
                                    offsetof(P, force_flush) == 32 && offsetof(P, speed) == 36 &&
                                    offsetof(P, port) == 40 && offsetof(P, latency) == 44 &&
                                    offsetof(P, max_comms) == 48 && offsetof(P, max_recvs) == 52 &&
                                    offsetof(P, device_type) == 56 &&
                                    offsetof(P, device_version) == 60 &&
                                    offsetof(P, virtual_device) == 64;
static_assert(kBeginsAsV9<PropertiesV9> && sizeof(PropertiesV9) == 104 &&
              offsetof(PropertiesV9, max_p2p_bytes) == 88 &&
              offsetof(PropertiesV9, max_coll_bytes) == 96);

struct TableV9 {
  static constexpr int kVersion = 9;
  using Properties = PropertiesV9;

  const char* name;
  int (*init)(Logger logger);
  int (*devices)(int* count);
  int (*get_properties)(int device, PropertiesV9* properties);
  int (*listen)(int device, void* handle, void** listen_comm);
  int (*connect)(int device, void* handle, void** send_comm, DeviceHandle** device_handle);
  int (*accept)(void* listen_comm, void** recv_comm, DeviceHandle** device_handle);
  int (*reg_mr)(void* comm, void* data, std::size_t bytes, int kind, void** mr);
  int (*reg_mr_dma_buf)(void* comm, void* data, std::size_t bytes, int kind, std::uint64_t offset,
                        int fd, void** mr);
  int (*dereg_mr)(void* comm, void* mr);
  int (*isend)(void* send_comm, void* data, std::size_t bytes, int tag, void* mr, void** request);
  int (*irecv)(void* recv_comm, int count, void** data, std::size_t* bytes, int* tags, void** mrs,
               void** request);
  int (*iflush)(void* recv_comm, int count, void** data, int* bytes, void** mrs, void** request);
  int (*test)(void* request, int* done, int* bytes);
  int (*close_send)(void* send_comm);
  int (*close_recv)(void* recv_comm);
  int (*close_listen)(void* listen_comm);
  int (*get_device_mr)(void* comm, void* mr, void** device_mr);
  int (*irecv_consumed)(void* recv_comm, int count, void* request);
  int (*make_virtual_device)(int* device, VirtualDevice<4>* properties);
};
static_assert(sizeof(TableV9) == 160 && offsetof(TableV9, test) == 104 &&
              offsetof(TableV9, irecv_consumed) == 144);

}  // namespace ferry::net::nccl_abi
