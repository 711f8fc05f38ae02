// Compares the places of network cards and GPUs on PCIe.
#include "ferry/tcpx/host/near_devices.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <system_error>

namespace ferry::tcpx {
namespace {

// "/", "sys" and "devices" are not a bus.
constexpr std::ptrdiff_t kNoBus = 3;

std::ptrdiff_t CommonParts(const std::filesystem::path& a, const std::filesystem::path& b) {
  return std::distance(a.begin(), std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first);
}

}  // namespace

std::vector<int> DevicesNear(std::span<const NicFacts> nics, const std::string& gpu_path) {
  std::error_code ignored;  // a path that cannot be resolved is compared as it is
  const auto gpu = std::filesystem::weakly_canonical(gpu_path, ignored);
  std::vector<std::ptrdiff_t> common;
  for (const NicFacts& nic : nics) {
    common.push_back(CommonParts(gpu, std::filesystem::weakly_canonical(nic.pci_path, ignored)));
  }
  const std::ptrdiff_t most = common.empty() ? 0 : *std::max_element(common.begin(), common.end());
  std::vector<int> devices;
  for (std::size_t i = 0; i < nics.size(); ++i) {
    if (most <= kNoBus || common[i] == most) devices.push_back(static_cast<int>(i));
  }
  return devices;
}

}  // namespace ferry::tcpx
