// Describes the machine's interfaces as one NIC.
#include "plugins/nccl/nic.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>
#include <utility>

namespace ferry::nccl_net {
namespace {

// Assumed speed of interfaces that report none, such as those of virtual machines, lo and veth;
// NCCL creates more channels for faster ones.
constexpr int kUnknownMegabits = 100'000;

// In Mbit/s; 0: unknown. Interfaces without a device state a speed that they do not have (veth:
// 10000).
int SpeedOf(const std::string& folder) {
  std::error_code error;
  if (!std::filesystem::exists(folder + "/device", error)) return 0;
  std::ifstream in(folder + "/speed");
  int megabits = 0;
  return in >> megabits && megabits > 0 ? megabits : 0;
}

// The MAC address; 1 for interfaces without one, because NCCL reads 0 as unknown.
std::uint64_t GuidOf(const std::string& folder) {
  std::ifstream in(folder + "/address");
  std::string text;
  in >> text;
  text.erase(std::remove(text.begin(), text.end(), ':'), text.end());
  return std::max<std::uint64_t>(std::strtoull(text.c_str(), nullptr, 16), 1);
}

std::string PciPathOf(const std::string& folder) {
  std::error_code error;
  const auto path = std::filesystem::canonical(folder + "/device", error);
  if (error) return {};
  // A virtio interface is a child of its PCI function.
  const bool is_function = std::filesystem::exists(path / "vendor", error) &&
                           path.filename().string().rfind("virtio", 0) != 0;
  return is_function ? path.string() : path.parent_path().string();
}

}  // namespace

Nic FindNic(std::vector<net::LocalAddress> addresses, const std::string& root) {
  const std::string interfaces_folder = root + "/sys/class/net/";
  Nic nic;
  std::set<std::string> interfaces;
  for (const net::LocalAddress& local : addresses) {
    if (!interfaces.insert(local.interface).second) continue;
    nic.megabits += SpeedOf(interfaces_folder + local.interface);
  }
  nic.name = addresses.front().interface;
  nic.addresses = std::move(addresses);
  if (nic.megabits == 0) nic.megabits = kUnknownMegabits;
  nic.guid = GuidOf(interfaces_folder + nic.name);
  nic.pci_path = PciPathOf(interfaces_folder + nic.name);
  return nic;
}

}  // namespace ferry::nccl_net
