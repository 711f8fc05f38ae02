// NCCL's network plugin interface, version 10.
#pragma once
#include <cstddef>
#include <cstdint>

#include "ferry/net/nccl_abi/abi.h"
#include "ferry/net/nccl_abi/abi_v9.h"

// Version 10, loaded by NCCL 2.26 to 2.30. Adds a profiler callback, event handles, and connect()
// with a configuration.
namespace ferry::net::nccl_abi {

using PropertiesV10 = PropertiesV9;

struct TableV10 {
  static constexpr int kVersion = 10;
  using Properties = PropertiesV10;

  const char* name;
  int (*init)(Logger logger, ProfilerCallback profiler);
  int (*devices)(int* count);
  int (*get_properties)(int device, PropertiesV10* properties);
  int (*listen)(int device, void* handle, void** listen_comm);
  int (*connect)(int device, CommConfig* config, void* handle, void** send_comm,
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
  int (*make_virtual_device)(int* device, VirtualDevice<4>* properties);
};
static_assert(sizeof(TableV10) == 160 && offsetof(TableV10, test) == 104 &&
              offsetof(TableV10, irecv_consumed) == 144);

}  // namespace ferry::net::nccl_abi
