// Collects and prints the facts about network interfaces for `ferry info`.

#include <fmt/core.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstring>
#include <string>

#include "ferry/core/fd.h"
#include "ferry/net/machine/local_addresses.h"
#include "tools/info/network.h"
#include "tools/support/report.h"

namespace ferry::tools {
namespace {

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

std::string StateOf(const net::InterfaceAddress& address) {
  if (!address.up) return "down";
  return address.carrier ? "up" : "no carrier";
}

}  // namespace

Json InterfaceInfo(const Config& config) {
  const auto all = net::ReadInterfaces();
  if (!all) return Json::array();
  const net::AddressChoice choice = net::ChooseAddresses(*all, config.interfaces);
  const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  Json interfaces = Json::array();
  for (std::size_t i = 0; i < all->size(); ++i) {
    const net::InterfaceAddress& address = (*all)[i];
    const char* const name = address.interface.c_str();
    const net::LeftOut left_out = choice.left_out[i];
    const bool told = left_out == net::LeftOut::kNot;
    const std::string why_not = told && !address.carrier
                                    ? "no carrier"
                                    : net::WhyLeftOut(left_out, address.kind, config.interfaces);
    interfaces.push_back(Json{{"interface", name},
                              {"address", address.host},
                              {"up", address.up},
                              {"state", StateOf(address)},
                              {"mtu", MtuOf(socket.get(), name)},
                              {"speed_mbit", SpeedOf(socket.get(), name)},
                              {"advertised", told},
                              {"used", why_not.empty()},
                              {"why_not", why_not}});
  }
  return interfaces;
}

void PrintInterfaces(const Json& interfaces) {
  for (const Json& one : interfaces) {
    const std::string address = one["address"].get<std::string>();
    const std::string why_not = one["why_not"].get<std::string>();
    PrintLine(fmt::format(
        "  {:<12} {:<39} {:<10} mtu {:<6} {:<13} {}", one["interface"].get<std::string>(),
        address.empty() ? "-" : address, one["state"].get<std::string>(), DumpJson(one["mtu"]),
        one["speed_mbit"].is_null() ? "" : DumpJson(one["speed_mbit"]) + " Mbit/s",
        why_not.empty() ? "used, told to peers" : "not used: " + why_not));
  }
}

}  // namespace ferry::tools
