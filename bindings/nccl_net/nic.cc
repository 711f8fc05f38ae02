// Describes the machine's interfaces as one NIC.
#include "bindings/nccl_net/nic.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>

#include "bindings/nccl_net/wire.h"

namespace ferry::nccl_net {
namespace {

// Assumed speed of interfaces that report none, such as those of virtual machines; NCCL creates
// more channels for faster ones.
constexpr int kUnknownMegabits = 100'000;

std::string FolderOf(const std::string& interface) { return "/sys/class/net/" + interface; }

int SpeedOf(const std::string& interface) {
  std::ifstream in(FolderOf(interface) + "/speed");
  int megabits = 0;
  return in >> megabits && megabits > 0 ? megabits : 0;
}

// The MAC address; 1 for interfaces without one, because NCCL reads 0 as unknown.
std::uint64_t GuidOf(const std::string& interface) {
  std::ifstream in(FolderOf(interface) + "/address");
  std::string text;
  in >> text;
  text.erase(std::remove(text.begin(), text.end(), ':'), text.end());
  return std::max<std::uint64_t>(std::strtoull(text.c_str(), nullptr, 16), 1);
}

std::string PciPathOf(const std::string& interface) {
  std::error_code error;
  const auto path = std::filesystem::canonical(FolderOf(interface) + "/device", error);
  if (error) return {};
  // A virtio interface is a child of its PCI function.
  const bool is_function = std::filesystem::exists(path / "vendor", error) &&
                           path.filename().string().rfind("virtio", 0) != 0;
  return is_function ? path.string() : path.parent_path().string();
}

}  // namespace

std::string Nic::AddressText() const {
  std::string text;
  for (const std::string& host : hosts) text += (text.empty() ? "" : ", ") + host;
  return text;
}

Nic FindNic(const net::Provider& provider, const Config& config, std::size_t devices) {
  Nic nic;
  std::set<std::string> interfaces;
  for (const net::LocalAddress& local : provider.Addresses(config)) {
    if (nic.name.empty()) nic.name = local.interface;
    if (interfaces.insert(local.interface).second) nic.megabits += SpeedOf(local.interface);
    if (nic.hosts.size() < kMaxAddresses) nic.hosts.push_back(local.host);
  }
  if (!config.listen_host.empty()) nic.hosts = {config.listen_host};
  if (nic.hosts.empty()) nic.hosts = {"127.0.0.1"};
  if (nic.name.empty()) nic.name = "lo";
  if (nic.megabits == 0) nic.megabits = kUnknownMegabits;
  nic.names = {nic.name};
  for (std::size_t i = 1; i < devices; ++i) nic.names.push_back(fmt::format("{}-{}", nic.name, i));
  nic.guid = GuidOf(nic.name);
  nic.pci_path = PciPathOf(nic.name);
  return nic;
}

}  // namespace ferry::nccl_net
