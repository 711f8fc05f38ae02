// NCCL's network plugin interface, version 8.
#pragma once
#include <cstddef>
#include <cstdint>

#include "ferry/net/nccl_abi/abi_v7.h"

// Version 8, loaded by NCCL 2.20 to 2.30. Adds reg_is_global in the middle of the properties; sizes
// of registrations are size_t.
namespace ferry::net::nccl_abi {

struct PropertiesV8 {
  char* name = nullptr;      // the interface's: "eth1"
  char* pci_path = nullptr;  // under /sys, or null
  std::uint64_t guid = 0;    // the same for ports of one card
  int ptr_support = 0;       // bits kPointer…
  int reg_is_global = 0;     // registrations serve all comms
  int speed = 0;             // Mbit/s
  int port = 0;
  float latency = 0;  // µs
  int max_comms = 0;
  int max_recvs = 0;    // receives that one irecv() may group
  int device_type = 0;  // kDeviceType…
  int device_version = 0;
};
static_assert(sizeof(PropertiesV8) == 64 && offsetof(PropertiesV8, ptr_support) == 24 &&
              offsetof(PropertiesV8, reg_is_global) == 28 && offsetof(PropertiesV8, speed) == 32 &&
              offsetof(PropertiesV8, port) == 36 && offsetof(PropertiesV8, latency) == 40 &&
              offsetof(PropertiesV8, max_comms) == 44 && offsetof(PropertiesV8, max_recvs) == 48 &&
              offsetof(PropertiesV8, device_type) == 52 &&
              offsetof(PropertiesV8, device_version) == 56);

using TableV8 = TableWithDevices<8, PropertiesV8, std::size_t>;
static_assert(sizeof(TableV8) == 152 && offsetof(TableV8, test) == 104 &&
              offsetof(TableV8, irecv_consumed) == 144);

}  // namespace ferry::net::nccl_abi
