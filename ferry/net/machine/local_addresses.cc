// Reads interfaces from the kernel and chooses addresses for peers.
#include "ferry/net/machine/local_addresses.h"

#include <fmt/core.h>
#include <ifaddrs.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "ferry/net/machine/netlink.h"

namespace ferry::net {
namespace {

// ---- reading ------------------------------------------------------------------------------------

struct InterfaceListDeleter {
  void operator()(ifaddrs* list) const noexcept { ::freeifaddrs(list); }
};

// The bytes of an IP address; empty for others.
std::string IpBytes(const sockaddr* address) {
  std::string bytes;
  if (address != nullptr && address->sa_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, address, sizeof v4);
    bytes.resize(sizeof v4.sin_addr);
    std::memcpy(bytes.data(), &v4.sin_addr, bytes.size());
  } else if (address != nullptr && address->sa_family == AF_INET6) {
    sockaddr_in6 v6{};
    std::memcpy(&v6, address, sizeof v6);
    bytes.resize(sizeof v6.sin6_addr);
    std::memcpy(bytes.data(), &v6.sin6_addr, bytes.size());
  }
  return bytes;
}

std::string HostIn(const sockaddr* address) {
  RawAddress raw;
  raw.length = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::memcpy(&raw.storage, address, raw.length);
  return FromRaw(raw).host;
}

int PrefixIn(const sockaddr* mask) {
  int bits = 0;
  for (const char byte : IpBytes(mask)) bits += std::popcount(static_cast<unsigned char>(byte));
  return bits;
}

// Bridges that are alike on all machines with the same engine, and so lead a peer to itself.
bool IsContainerBridge(std::string_view name) {
  constexpr std::array<std::string_view, 6> kPrefixes = {"docker", "podman", "cni",
                                                         "virbr",  "lxcbr",  "lxdbr"};
  constexpr std::size_t kDockerNetwork = 3 + 12;  // "br-" and the beginning of its id
  const auto begins = [name](std::string_view prefix) { return name.starts_with(prefix); };
  return std::any_of(kPrefixes.begin(), kPrefixes.end(), begins) ||
         (begins("br-") && name.size() == kDockerNetwork &&
          name.find_first_not_of("0123456789abcdef", 3) == std::string_view::npos);
}

bool IsBridge(std::span<const std::byte> link_info, std::uint16_t attribute) {
  constexpr std::string_view kBridge = "bridge";
  const auto kind = AttributeIn(link_info, attribute);
  return kind && kind->size() >= kBridge.size() &&
         std::memcmp(kind->data(), kBridge.data(), kBridge.size()) == 0;
}

// Not from /sys, which may be that of another network namespace.
InterfaceKind KindOf(const std::string& name, unsigned flags) {
  if ((flags & IFF_LOOPBACK) != 0) return InterfaceKind::kLoopback;
  const auto link = AskLink(static_cast<int>(::if_nametoindex(name.c_str())));
  const auto info = link ? AttributeIn(*link, IFLA_LINKINFO) : std::nullopt;
  if (info && IsBridge(*info, IFLA_INFO_KIND)) {
    return IsContainerBridge(name) ? InterfaceKind::kContainerBridge : InterfaceKind::kBridge;
  }
  const bool port = info && IsBridge(*info, IFLA_INFO_SLAVE_KIND);
  return port ? InterfaceKind::kBridgePort : InterfaceKind::kOrdinary;
}

// ---- choosing -----------------------------------------------------------------------------------

bool IsHostV6(std::string_view host) { return host.find(':') != std::string_view::npos; }

// Without the scope, whose interface need not exist.
Result<RawAddress> RawOfHost(const std::string& host) {
  return ToRaw({host.substr(0, host.find('%')), 0});
}

bool IsLoopbackHost(const std::string& host) {
  const auto raw = RawOfHost(host);
  return raw && IsLoopback(*raw);
}

bool IsLinkLocalHost(const std::string& host) {
  const auto raw = RawOfHost(host);
  if (!raw) return false;
  const std::string bytes = IpBytes(raw->get());
  const auto at = [&bytes](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  return raw->family() == AF_INET ? at(0) == 169 && at(1) == 254
                                  : at(0) == 0xFE && (at(1) & 0xC0) == 0x80;
}

// Why an address is never told, whatever else there is.
LeftOut Excluded(const InterfaceAddress& address, std::string_view list, IpFamily family) {
  if (!InterfaceAllowed(list, address.interface)) return LeftOut::kByList;
  if (!address.up) return LeftOut::kDown;
  if (address.host.empty()) return LeftOut::kNoAddress;
  const bool v6 = IsHostV6(address.host);
  if (family != IpFamily::kAny && v6 != (family == IpFamily::kIpv6)) return LeftOut::kFamily;
  // Means nothing without the name of an interface of the peer.
  if (v6 && IsLinkLocalHost(address.host)) return LeftOut::kLinkLocal;
  const bool excludes = !list.empty() && list.front() == '^';
  return excludes && IsLoopbackHost(address.host) ? LeftOut::kLoopback : LeftOut::kNot;
}

// The groups of ChooseAddresses(), the first of which that has an address is used.
constexpr int kFirstGroup = 0;
constexpr int kLastGroup = 6;  // loopback

int GroupOf(const InterfaceAddress& address, bool is_named) {
  if (IsLoopbackHost(address.host)) return kLastGroup;
  if (IsLinkLocalHost(address.host)) return 5;
  if (is_named) return kFirstGroup;
  switch (address.kind) {
    case InterfaceKind::kOrdinary: return kFirstGroup;
    case InterfaceKind::kBridge: return 1;
    case InterfaceKind::kContainerBridge: return 2;
    case InterfaceKind::kBridgePort: return 3;
    case InterfaceKind::kLoopback: return 4;
  }
  return kLastGroup;
}

LeftOut ReasonOfGroup(const InterfaceAddress& address) {
  if (IsLoopbackHost(address.host)) return LeftOut::kLoopback;
  return IsLinkLocalHost(address.host) ? LeftOut::kLinkLocal : LeftOut::kKind;
}

// The first address of each family and interface precedes further ones.
std::vector<LocalAddress> FirstOnesFirst(std::vector<LocalAddress> told) {
  std::set<std::pair<std::string, bool>> known;
  std::vector<LocalAddress> first;
  std::vector<LocalAddress> further;
  for (LocalAddress& local : told) {
    const bool is_new = known.emplace(local.interface, IsHostV6(local.host)).second;
    (is_new ? first : further).push_back(std::move(local));
  }
  first.insert(first.end(), further.begin(), further.end());
  return first;
}

std::string WarningOf(const std::vector<LocalAddress>& told, std::string_view reason) {
  std::string text;
  for (const LocalAddress& local : told) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", local.interface, local.host);
  }
  return fmt::format(
      "peers are told {} ({}), because no other interface has an address for them; see "
      "`ferry info --addresses`, and name the interfaces to use in FERRY_INTERFACES",
      text, reason);
}

std::string SubnetOf(const std::string& host, int prefix) {
  const auto raw = RawOfHost(host);
  if (!raw || IsLoopback(*raw) || IsLinkLocalHost(host)) return "";
  std::string bytes = IpBytes(raw->get());
  if (prefix <= 0 || static_cast<std::size_t>(prefix) >= 8 * bytes.size()) return "";
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const int bits = std::clamp(prefix - 8 * static_cast<int>(i), 0, 8);
    const unsigned mask = 0xFF00U >> static_cast<unsigned>(bits) & 0xFFU;
    bytes[i] = static_cast<char>(static_cast<unsigned char>(bytes[i]) & mask);
  }
  return bytes + static_cast<char>(prefix);
}

}  // namespace

std::optional<std::vector<InterfaceAddress>> ReadInterfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return std::nullopt;
  const std::unique_ptr<ifaddrs, InterfaceListDeleter> list(first);
  std::vector<InterfaceAddress> all;
  std::map<std::string, InterfaceAddress> interfaces;
  std::set<std::string> addressed;
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    // Without the label of an alias: "eth0:1".
    const std::string name(entry->ifa_name, std::strcspn(entry->ifa_name, ":"));
    const auto [interface, is_new] = interfaces.try_emplace(name);
    if (is_new) {
      interface->second = {.interface = name,
                           .host = {},
                           .kind = KindOf(name, entry->ifa_flags),
                           .up = (entry->ifa_flags & IFF_UP) != 0,
                           .carrier = (entry->ifa_flags & IFF_RUNNING) != 0};
    }
    if (IpBytes(entry->ifa_addr).empty()) continue;
    InterfaceAddress& address = all.emplace_back(interface->second);
    address.host = HostIn(entry->ifa_addr);
    address.prefix = PrefixIn(entry->ifa_netmask);
    addressed.insert(name);
  }
  for (auto& [name, interface] : interfaces) {
    if (addressed.count(name) == 0) all.push_back(std::move(interface));
  }
  return all;
}

AddressChoice ChooseAddresses(std::span<const InterfaceAddress> all, std::string_view list,
                              IpFamily family) {
  const bool is_named = !list.empty() && list.front() != '^';
  AddressChoice choice;
  std::vector<int> groups;
  int used = kLastGroup;
  for (const InterfaceAddress& address : all) {
    choice.left_out.push_back(Excluded(address, list, family));
    groups.push_back(GroupOf(address, is_named));
    if (choice.left_out.back() == LeftOut::kNot) used = std::min(used, groups.back());
  }
  std::string reason = WhyLeftOut(LeftOut::kLoopback, InterfaceKind::kLoopback, list);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (choice.left_out[i] != LeftOut::kNot) continue;
    if (groups[i] == used) {
      choice.told.push_back({all[i].interface, all[i].host});
      reason = WhyLeftOut(ReasonOfGroup(all[i]), all[i].kind, list);
    } else {
      choice.left_out[i] = ReasonOfGroup(all[i]);
    }
  }
  choice.told = FirstOnesFirst(std::move(choice.told));
  // Without a network, peers are on this machine.
  if (choice.told.empty() && list.empty() && family != IpFamily::kIpv6) {
    choice.told.push_back({"lo", "127.0.0.1"});
  }
  if (!is_named && used != kFirstGroup && !choice.told.empty()) {
    choice.warning = WarningOf(choice.told, reason);
  }
  return choice;
}

std::string WhyLeftOut(LeftOut why, InterfaceKind kind, std::string_view list) {
  switch (why) {
    case LeftOut::kNot: return "";
    case LeftOut::kByList: return fmt::format("left out by FERRY_INTERFACES={}", list);
    case LeftOut::kDown: return "it is down";
    case LeftOut::kNoAddress: return "no address";
    case LeftOut::kFamily: return "left out by NCCL_SOCKET_FAMILY";
    case LeftOut::kLinkLocal: return "link-local";
    case LeftOut::kLoopback: return "reaches this machine only";
    case LeftOut::kKind: break;
  }
  switch (kind) {
    case InterfaceKind::kBridge: return "a bridge";
    case InterfaceKind::kContainerBridge: return "a bridge of a container engine";
    case InterfaceKind::kBridgePort: return "a port of a bridge";
    case InterfaceKind::kLoopback: return "of the loopback interface";
    case InterfaceKind::kOrdinary: break;
  }
  return "another address is preferred";
}

Error NothingSelected(std::string_view setting, std::span<const InterfaceAddress> all,
                      const AddressChoice& choice) {
  constexpr int kMaxNamed = 16;
  std::string text;
  int named = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const InterfaceAddress& address = all[i];
    const bool by_list = choice.left_out[i] == LeftOut::kByList;
    if (by_list && (address.host.empty() || IsLinkLocalHost(address.host))) continue;
    if (++named > kMaxNamed) continue;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", address.interface);
    if (!address.host.empty()) text += " " + address.host;
    if (!by_list) text += fmt::format(" ({})", WhyLeftOut(choice.left_out[i], address.kind, ""));
  }
  if (named > kMaxNamed) text += fmt::format(" and {} more", named - kMaxNamed);
  return Error(
      Code::kInvalidArgument,
      fmt::format("{} selects no address that peers can be told: this machine has {}; name "
                  "one of its interfaces, or leave it unset",
                  setting, text.empty() ? "none" : text));
}

std::vector<Address> ToldAddresses(std::span<const LocalAddress> chosen,
                                   const std::vector<Address>& listening) {
  std::vector<Address> told;
  const Address& first = listening.front();
  const bool any_v4 = first.host == "0.0.0.0";
  if (any_v4 || first.host.empty() || first.host == "::") {
    for (const LocalAddress& local : chosen) {
      if (!any_v4 || !IsHostV6(local.host)) told.push_back({local.host, first.port});
    }
    return told;
  }
  std::copy_if(listening.begin(), listening.end(), std::back_inserter(told),
               [](const Address& address) { return !IsLoopbackHost(address.host); });
  return told.empty() ? listening : told;
}

std::vector<InterfaceAddress> SharedSubnets(std::span<const InterfaceAddress> all) {
  std::map<std::string, std::set<std::string>> interfaces;  // by subnet
  for (const InterfaceAddress& address : all) {
    if (address.up) interfaces[SubnetOf(address.host, address.prefix)].insert(address.interface);
  }
  interfaces.erase("");
  std::vector<InterfaceAddress> shared;
  for (const InterfaceAddress& address : all) {
    const auto found = interfaces.find(SubnetOf(address.host, address.prefix));
    if (address.up && found != interfaces.end() && found->second.size() > 1) {
      shared.push_back(address);
    }
  }
  return shared;
}

bool IsInSubnet(const Address& address, const InterfaceAddress& local) {
  const std::string subnet = SubnetOf(local.host, local.prefix);
  return !subnet.empty() && SubnetOf(address.host, local.prefix) == subnet;
}

std::string InterfacesOfNccl(std::string_view socket_ifname) {
  std::string list;
  if (socket_ifname.substr(0, 1) == "^") {
    list += '^';
    socket_ifname.remove_prefix(1);
  }
  const bool exact = socket_ifname.substr(0, 1) == "=";
  if (exact) socket_ifname.remove_prefix(1);
  bool first = true;
  while (!socket_ifname.empty()) {
    const std::size_t comma = std::min(socket_ifname.find(','), socket_ifname.size());
    // NCCL allows a port after a name; it has no meaning here.
    const std::string_view name = socket_ifname.substr(0, std::min(comma, socket_ifname.find(':')));
    if (!name.empty()) {
      if (!first) list += ',';
      list += name;
      if (!exact) list += '*';
      first = false;
    }
    socket_ifname.remove_prefix(std::min(comma + 1, socket_ifname.size()));
  }
  return first ? std::string() : list;
}

IpFamily FamilyOfNccl(const char* socket_family) {
  const std::string_view text = socket_family == nullptr ? "" : socket_family;
  return text == "AF_INET"    ? IpFamily::kIpv4
         : text == "AF_INET6" ? IpFamily::kIpv6
                              : IpFamily::kAny;
}

}  // namespace ferry::net
