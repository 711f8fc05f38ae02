// NCCL's network plugin interface, version 11.
#pragma once
#include <cstddef>
#include <cstdint>

#include "ferry/net/nccl_abi/abi_v9.h"

// Version 11, loaded by NCCL 2.28 to 2.30. Adds init() for each communicator, whose context
// listen() and connect() receive, and finalize().
namespace ferry::net::nccl_abi {

struct PropertiesV11 {
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
  int max_multi_request_size = 0;
};
static_assert(kBeginsAsV9<PropertiesV11> && sizeof(PropertiesV11) == 112 &&
              offsetof(PropertiesV11, max_p2p_bytes) == 88 &&
              offsetof(PropertiesV11, max_coll_bytes) == 96 &&
              offsetof(PropertiesV11, max_multi_request_size) == 104);

// The tables of versions 11 and 12, which differ in their properties and virtual devices.
template <int kNumber, class Its, int kMaxDevices>
struct TableWithContexts {
  static constexpr int kVersion = kNumber;
  using Properties = Its;

  const char* name;
  int (*init)(void** context, std::uint64_t comm, CommConfig* config, Logger logger,
              ProfilerCallback profiler);
  int (*devices)(int* count);
  int (*get_properties)(int device, Its* properties);
  int (*listen)(void* context, int device, void* handle, void** listen_comm);
  int (*connect)(void* context, int device, void* handle, void** send_comm,
                 DeviceHandle** device_handle);
  int (*accept)(void* listen_comm, void** recv_comm, DeviceHandle** device_handle);
  int (*reg_mr)(void* comm, void* data, std::size_t bytes, int kind, void** mr);
  int (*reg_mr_dma_buf)(void* comm, void* data, std::size_t bytes, int kind, std::uint64_t offset,
                        int fd, void** mr);
  int (*dereg_mr)(void* comm, void* mr);
  int (*isend)(void* send_comm, void* data, std::size_t bytes, int tag, void* mr,
               void* profiler_event, void** request);
  int (*irecv)(void* recv_comm, int count, void** data, std::size_t* bytes, int* tags, void** mrs,
               void** profiler_events, void** request);
  int (*iflush)(void* recv_comm, int count, void** data, int* bytes, void** mrs, void** request);
  int (*test)(void* request, int* done, int* bytes);
  int (*close_send)(void* send_comm);
  int (*close_recv)(void* recv_comm);
  int (*close_listen)(void* listen_comm);
  int (*get_device_mr)(void* comm, void* mr, void** device_mr);
  int (*irecv_consumed)(void* recv_comm, int count, void* request);
  int (*make_virtual_device)(int* device, VirtualDevice<kMaxDevices>* properties);
  int (*finalize)(void* context);
  int (*set_net_attr)(void* context, void* attributes);
};
using TableV11 = TableWithContexts<11, PropertiesV11, 4>;
static_assert(sizeof(TableV11) == 176 && offsetof(TableV11, test) == 104 &&
              offsetof(TableV11, irecv_consumed) == 144 && offsetof(TableV11, finalize) == 160);

}  // namespace ferry::net::nccl_abi
