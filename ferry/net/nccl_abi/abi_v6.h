// NCCL's network plugin interface, version 6.
#pragma once
#include <cstddef>
#include <cstdint>

#include "ferry/net/nccl_abi/abi.h"
#include "ferry/net/nccl_abi/abi_v5.h"

// Version 6, loaded by NCCL 2.13 to 2.30. Adds regMrDmaBuf().
namespace ferry::net::nccl_abi {

using PropertiesV6 = PropertiesV5;

struct TableV6 {
  static constexpr int kVersion = 6;
  using Properties = PropertiesV6;

  const char* name;
  int (*init)(Logger logger);
  int (*devices)(int* count);
  int (*get_properties)(int device, PropertiesV6* properties);
  int (*listen)(int device, void* handle, void** listen_comm);
  int (*connect)(int device, void* handle, void** send_comm);
  int (*accept)(void* listen_comm, void** recv_comm);
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
};
static_assert(sizeof(TableV6) == 136 && offsetof(TableV6, test) == 104);

}  // namespace ferry::net::nccl_abi
