// NCCL's network plugin interface, version 5.
#pragma once
#include <cstddef>
#include <cstdint>

#include "ferry/net/nccl_abi/abi.h"

// Version 5, loaded by NCCL 2.12 to 2.26. Has grouped receives with tags, and connect() and
// accept() that do not block.
namespace ferry::net::nccl_abi {

struct PropertiesV5 {
  char* name = nullptr;      // the interface's: "eth1"
  char* pci_path = nullptr;  // under /sys, or null
  std::uint64_t guid = 0;    // the same for ports of one card
  int ptr_support = 0;       // bits kPointer…
  int speed = 0;             // Mbit/s
  int port = 0;
  float latency = 0;  // µs
  int max_comms = 0;
  int max_recvs = 0;  // receives that one irecv() may group
};
static_assert(sizeof(PropertiesV5) == 48 && offsetof(PropertiesV5, ptr_support) == 24 &&
              offsetof(PropertiesV5, speed) == 28 && offsetof(PropertiesV5, port) == 32 &&
              offsetof(PropertiesV5, latency) == 36 && offsetof(PropertiesV5, max_comms) == 40 &&
              offsetof(PropertiesV5, max_recvs) == 44);

struct TableV5 {
  static constexpr int kVersion = 5;
  using Properties = PropertiesV5;

  const char* name;
  int (*init)(Logger logger);
  int (*devices)(int* count);
  int (*get_properties)(int device, PropertiesV5* properties);
  int (*listen)(int device, void* handle, void** listen_comm);
  int (*connect)(int device, void* handle, void** send_comm);
  int (*accept)(void* listen_comm, void** recv_comm);
  int (*reg_mr)(void* comm, void* data, int bytes, int kind, void** mr);
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
static_assert(sizeof(TableV5) == 128 && offsetof(TableV5, test) == 96);

}  // namespace ferry::net::nccl_abi
