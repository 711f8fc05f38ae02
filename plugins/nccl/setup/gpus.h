// How the machine's GPUs are connected to its CPUs.
#pragma once
#include <cstddef>
#include <string>

#include "plugins/nccl/wire.h"

namespace ferry::nccl_net {

struct Gpus {
  std::size_t count = 0;
  GpuLink link = GpuLink::kUnknown;  // kSwitch if any GPU is behind a switch
};

// All NVIDIA GPUs of the machine, visible to this process or not, as /sys shows them. NCCL climbs
// two PCI devices at a time from a GPU, so one bridge above it is its root port, and a second one
// belongs to a switch. `root` precedes /sys in tests.
Gpus FindGpus(const std::string& root = {});

}  // namespace ferry::nccl_net
