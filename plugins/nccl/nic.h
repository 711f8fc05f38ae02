// The NIC that the plugin presents to NCCL.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ferry/net/address.h"

namespace ferry::nccl_net {

// All interfaces that the settings allow, presented to NCCL as one NIC with the name and PCI path
// of the first one.
struct Nic {
  std::string name;                          // "eth0"
  std::string pci_path;                      // under /sys; empty for a virtual one
  std::uint64_t guid = 0;                    // the same in every process of the machine
  int megabits = 0;                          // Mbit/s of all interfaces together
  std::vector<net::LocalAddress> addresses;  // that peers may be told
};

// `addresses`: at least one. `root` precedes /sys in tests.
Nic FindNic(std::vector<net::LocalAddress> addresses, const std::string& root = {});

}  // namespace ferry::nccl_net
