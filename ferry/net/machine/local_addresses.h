// Which of this machine's addresses peers are told.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ferry/core/result.h"
#include "ferry/net/address.h"

namespace ferry::net {

enum class InterfaceKind : std::uint8_t {
  kOrdinary,         // a card, bond, VLAN or tunnel, or a container's own end of a veth pair
  kBridge,           // such as br0
  kContainerBridge,  // of a container engine or hypervisor, by its name: docker0, cni0, virbr0
  kBridgePort,       // leads to a container or a virtual machine
  kLoopback,
};

// An address of an interface, or an interface that has none.
struct InterfaceAddress {
  std::string interface;
  std::string host;  // numeric; empty: the interface has no IP address
  InterfaceKind kind = InterfaceKind::kOrdinary;
  bool up = true;
  bool carrier = true;
  int prefix = 0;  // number of leading bits that addresses of its subnet share; 0: unknown
};

// All addresses of this machine, in the system's order, then the interfaces that have none. Reads
// them from the system: the cost grows with their number (InterfaceTable caches them). Returns
// nothing where the system has no descriptor or memory left to answer.
std::optional<std::vector<InterfaceAddress>> ReadInterfaces();

enum class IpFamily : std::uint8_t { kAny, kIpv4, kIpv6 };

// Why peers are not told of an address.
enum class LeftOut : std::uint8_t {
  kNot,        // they are
  kByList,     // the list of interfaces does not select it
  kDown,       // the interface is down
  kNoAddress,  // the interface has no address
  kFamily,     // the address has the other family
  kLinkLocal,
  kKind,      // kinds other than kOrdinary are used where they are named, or where nothing else is
  kLoopback,  // reaches this machine only
};

struct AddressChoice {
  std::vector<LocalAddress> told;  // in the order in which peers should try them
  std::vector<LeftOut> left_out;   // of each address that was given
  // Not empty where peers are told an address that only may reach this machine: the reason.
  std::string warning;
};

// Chooses the addresses that peers are told from all those of the machine: those of interfaces that
// are up and that `list` (see InterfaceAllowed()) allows. An interface that the list names is used
// whatever its kind. Of the others, the first of these groups that has an address is used: ordinary
// interfaces, bridges, bridges of container engines, ports of bridges, routable addresses of the
// loopback interface, 169.254/16. Loopback comes last, and only where the list is empty or names
// it. The first address of each family and interface precedes further ones. `told` is empty where
// the list or `family` selects nothing.
AddressChoice ChooseAddresses(std::span<const InterfaceAddress> all, std::string_view list,
                              IpFamily family = IpFamily::kAny);

// The reason as text, without a verb; "" for kNot.
std::string WhyLeftOut(LeftOut why, InterfaceKind kind, std::string_view list);
// kInvalidArgument for a choice that tells nothing. `setting`: what selects nothing, with its
// value. Names the interfaces that exist.
Error NothingSelected(std::string_view setting, std::span<const InterfaceAddress> all,
                      const AddressChoice& choice);

// What peers are told of a listener: `chosen` where it listens at all addresses, of one family or
// both; otherwise the addresses of `listening` that other machines can reach, or all of them where
// there are only those of loopback. `listening` has one address at least.
std::vector<Address> ToldAddresses(std::span<const LocalAddress> chosen,
                                   const std::vector<Address>& listening);

// The addresses whose subnet another interface is in as well: the routing table alone sends
// everything to such a subnet by one of its interfaces.
std::vector<InterfaceAddress> SharedSubnets(std::span<const InterfaceAddress> all);
// Whether a numeric address is in the subnet of a local one.
bool IsInSubnet(const Address& address, const InterfaceAddress& local);

// The setting `interfaces` for a value of NCCL_SOCKET_IFNAME: prefixes, or full names after "=";
// those after "^" are excluded.
std::string InterfacesOfNccl(std::string_view socket_ifname);
// For a value of NCCL_SOCKET_FAMILY, null where it is not set. As NCCL, ignores other texts than
// AF_INET and AF_INET6.
IpFamily FamilyOfNccl(const char* socket_family);

}  // namespace ferry::net
