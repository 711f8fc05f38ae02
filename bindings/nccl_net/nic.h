// The NIC that the plugin presents to NCCL.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/net/provider.h"

namespace ferry::nccl_net {

// The machine's way to others: all interfaces that the settings allow, by the name and place of the
// first. To NCCL it is as many devices as are asked for (NcclRequest), which share it.
struct Nic {
  std::string name;                // "eth0"
  std::vector<std::string> names;  // of the devices
  std::string pci_path;            // under /sys; empty for a virtual one
  std::uint64_t guid = 0;          // the same in every process of the machine
  int megabits = 0;                // per second, of all of them
  std::vector<std::string> hosts;  // numeric addresses, as many as a handle has room for

  std::string AddressText() const;
};

Nic FindNic(const net::Provider& provider, const Config& config, std::size_t devices);

}  // namespace ferry::nccl_net
