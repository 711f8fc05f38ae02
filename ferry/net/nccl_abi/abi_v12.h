// NCCL's network plugin interface, version 12.
#pragma once
#include <cstddef>
#include <cstdint>

#include "ferry/net/nccl_abi/abi_v11.h"

// Version 12, loaded by NCCL 2.30. Adds eight devices in a virtual one, and rail and plane.
namespace ferry::net::nccl_abi {

struct PropertiesV12 {
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
  VirtualDevice<8> virtual_device;
  std::size_t max_p2p_bytes = 0;  // of one isend()
  std::size_t max_coll_bytes = 0;
  int max_multi_request_size = 0;
  std::int16_t rail = -1;  // -1: not known
  std::int16_t plane = -1;
};
static_assert(kBeginsAsV9<PropertiesV12> && sizeof(PropertiesV12) == 128 &&
              offsetof(PropertiesV12, max_p2p_bytes) == 104 &&
              offsetof(PropertiesV12, max_coll_bytes) == 112 &&
              offsetof(PropertiesV12, max_multi_request_size) == 120 &&
              offsetof(PropertiesV12, rail) == 124 && offsetof(PropertiesV12, plane) == 126);

using TableV12 = TableWithContexts<12, PropertiesV12, 8>;
static_assert(sizeof(TableV12) == 176 && offsetof(TableV12, test) == 104 &&
              offsetof(TableV12, irecv_consumed) == 144 && offsetof(TableV12, finalize) == 160);

}  // namespace ferry::net::nccl_abi
