// Collects and prints the facts about network interfaces for `ferry info`.

#include <fmt/core.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ferry/core/fd.h"
#include "ferry/net/address.h"
#include "ferry/tools/info/network.h"
#include "ferry/tools/support/report.h"

namespace ferry::tools {
namespace {

std::string HostOf(const sockaddr* address) {
  net::RawAddress raw;
  raw.length = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::memcpy(&raw.storage, address, raw.length);
  return net::FromRaw(raw).host;
}

struct ListDeleter {
  void operator()(ifaddrs* list) const noexcept { ::freeifaddrs(list); }
};

ifreq RequestFor(const char* interface) {
  ifreq request{};
  std::strncpy(request.ifr_name, interface, IFNAMSIZ - 1);
  return request;
}

// netdevice(7). Not from /sys, which may be that of another network namespace.
Json MtuOf(int socket, const char* interface) {
  ifreq request = RequestFor(interface);
  if (::ioctl(socket, SIOCGIFMTU, &request) != 0) return nullptr;
  return request.ifr_mtu;
}

// Nothing for an interface that has no speed, or does not tell it.
Json SpeedOf(int socket, const char* interface) {
  ethtool_cmd command{};
  command.cmd = ETHTOOL_GSET;
  ifreq request = RequestFor(interface);
  request.ifr_data = reinterpret_cast<char*>(&command);  // an untyped pointer of netdevice(7)
  if (::ioctl(socket, SIOCETHTOOL, &request) != 0) return nullptr;
  const std::uint32_t speed = ethtool_cmd_speed(&command);
  if (speed == 0 || speed == static_cast<std::uint32_t>(SPEED_UNKNOWN)) return nullptr;
  return speed;
}

std::string StateOf(unsigned flags) {
  if ((flags & IFF_UP) == 0) return "down";
  return (flags & IFF_RUNNING) == 0 ? "no carrier" : "up";
}

// Why lanes to other machines do not use it; "" where they do. `told`: peers are told of it.
std::string WhyNot(const ifaddrs& entry, const Config& config, bool told) {
  if (!net::InterfaceAllowed(config.interfaces, entry.ifa_name)) {
    return fmt::format("left out by FERRY_INTERFACES={}", config.interfaces);
  }
  if ((entry.ifa_flags & IFF_LOOPBACK) != 0) return "reaches this machine only";
  if ((entry.ifa_flags & IFF_UP) == 0) return "it is down";
  if (!told) return "link-local, or of a bridge or container";
  return (entry.ifa_flags & IFF_RUNNING) == 0 ? "no carrier" : "";
}

}  // namespace

Json InterfaceInfo(const Config& config) {
  const auto advertised = net::AdvertisableAddresses();
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return Json::array();
  const std::unique_ptr<ifaddrs, ListDeleter> list(first);
  const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  Json interfaces = Json::array();
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    const sockaddr* const address = entry->ifa_addr;
    if (address == nullptr || (address->sa_family != AF_INET && address->sa_family != AF_INET6)) {
      continue;
    }
    const std::string host = HostOf(address);
    const bool told = std::any_of(advertised.begin(), advertised.end(),
                                  [&](const net::LocalAddress& a) { return a.host == host; });
    const std::string why_not = WhyNot(*entry, config, told);
    const bool allowed = net::InterfaceAllowed(config.interfaces, entry->ifa_name);
    interfaces.push_back(Json{{"interface", entry->ifa_name},
                              {"address", host},
                              {"up", (entry->ifa_flags & IFF_UP) != 0},
                              {"state", StateOf(entry->ifa_flags)},
                              {"mtu", MtuOf(socket.get(), entry->ifa_name)},
                              {"speed_mbit", SpeedOf(socket.get(), entry->ifa_name)},
                              {"advertised", told && allowed},
                              {"used", why_not.empty()},
                              {"why_not", why_not}});
  }
  return interfaces;
}

void PrintInterfaces(const Json& interfaces) {
  for (const Json& one : interfaces) {
    const std::string why_not = one["why_not"].get<std::string>();
    PrintLine(fmt::format(
        "  {:<12} {:<39} {:<10} mtu {:<6} {:<13} {}", one["interface"].get<std::string>(),
        one["address"].get<std::string>(), one["state"].get<std::string>(), DumpJson(one["mtu"]),
        one["speed_mbit"].is_null() ? "" : DumpJson(one["speed_mbit"]) + " Mbit/s",
        why_not.empty() ? "used, told to peers" : "not used: " + why_not));
  }
}

}  // namespace ferry::tools
