// Which of a plugin's devices are near a GPU.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "ferry/tcpx/host/driver.h"

namespace ferry::tcpx {

// The numbers of the devices that share most of the way over PCIe with the GPU, whose path under
// /sys is `gpu_path`: "/sys/devices/pci0000:3a/0000:3a:00.0/...". All devices where no path is
// known or none has a bus in common.
std::vector<int> DevicesNear(std::span<const NicFacts> nics, const std::string& gpu_path);

}  // namespace ferry::tcpx
