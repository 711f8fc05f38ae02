// Asks rtnetlink for routes and for the device behind an interface.
#include "ferry/net/machine/egress.h"

#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "ferry/net/machine/netlink.h"
#include "ferry/net/machine/socket_owner.h"

namespace ferry::net {
namespace {

// IFLA_PARENT_DEV_NAME, which older headers lack.
constexpr std::uint16_t kParentDevice = 56;

template <class T>
std::span<const std::byte> BytesOf(const T& number) {
  return std::as_bytes(std::span(&number, 1));
}

rtmsg RouteRequest(int family) {
  rtmsg request{};
  request.rtm_family = static_cast<unsigned char>(family);
  return request;
}

std::vector<std::byte> BodyOf(const rtmsg& request) {
  std::vector<std::byte> body(NetlinkAligned(sizeof request));
  std::memcpy(body.data(), &request, sizeof request);
  return body;
}

// The attributes of a route to another machine; nothing if there is none.
std::optional<std::vector<std::byte>> AskRoute(std::span<const std::byte> body) {
  auto answer = Netlink(NETLINK_ROUTE).Ask(RTM_GETROUTE, body, RTM_NEWROUTE);
  rtmsg route{};
  if (!answer || answer->size() < sizeof route) return std::nullopt;
  std::memcpy(&route, answer->data(), sizeof route);
  if (route.rtm_type != RTN_UNICAST) return std::nullopt;
  answer->erase(answer->begin(), answer->begin() + sizeof route);
  return answer;
}

// 0 if there is none.
int InterfaceIn(std::span<const std::byte> route) {
  const auto interface = AttributeIn(route, RTA_OIF);
  int index = 0;
  if (interface && interface->size() == sizeof index) {
    std::memcpy(&index, interface->data(), sizeof index);
  }
  return index;
}

// An option of SOL_SOCKET; 0 where the kernel does not know it.
int OptionOf(int socket, int option) {
  int value = 0;
  socklen_t bytes = sizeof value;
  return ::getsockopt(socket, SOL_SOCKET, option, &value, &bytes) == 0 ? value : 0;
}

// What routing rules can ask for beside the addresses. A kernel ignores attributes that it does not
// know: the protocol and the ports before Linux 4.18.
void AppendSelectors(std::vector<std::byte>* body, int socket, const SocketEnds& ends) {
  const int bound = BoundTo(socket);
  if (bound != 0) AppendAttribute(body, RTA_OIF, BytesOf(bound));
  AppendAttribute(body, RTA_MARK, BytesOf(OptionOf(socket, SO_MARK)));
  // The user who has made the socket owns its inode.
  struct stat info {};
  if (::fstat(socket, &info) == 0) AppendAttribute(body, RTA_UID, BytesOf(info.st_uid));
  AppendAttribute(body, RTA_IP_PROTO,
                  BytesOf(static_cast<std::uint8_t>(OptionOf(socket, SO_PROTOCOL))));
  AppendAttribute(body, RTA_SPORT, BytesOf(ends.local.port));
  AppendAttribute(body, RTA_DPORT, BytesOf(ends.remote.port));
}

bool HasDevice(int interface) {
  const auto link = AskLink(interface);
  return link && AttributeIn(*link, kParentDevice).has_value();
}

}  // namespace

int EgressOf(int socket) {
  const auto ends = EndsOf(socket);
  if (!ends) return 0;
  const bool v4 = ends->family == AF_INET;
  rtmsg request = RouteRequest(ends->family);
  request.rtm_dst_len = request.rtm_src_len = v4 ? 32 : 128;
  std::vector<std::byte> body = BodyOf(request);
  const std::size_t bytes = v4 ? 4 : 16;
  AppendAttribute(&body, RTA_DST, std::as_bytes(std::span(ends->remote.address)).first(bytes));
  AppendAttribute(&body, RTA_SRC, std::as_bytes(std::span(ends->local.address)).first(bytes));
  AppendSelectors(&body, socket, *ends);
  const auto route = AskRoute(body);
  return route ? InterfaceIn(*route) : 0;
}

bool LeavesThroughDevice(int socket) {
  const int interface = EgressOf(socket);
  return interface != 0 && HasDevice(interface);
}

// With RTM_F_FIB_MATCH the kernel answers with an entry of the table. Without it, an address that
// no entry of this interface covers is taken to be on its link.
bool LeadsTo(const std::string& interface, const Address& to) {
  const auto raw = ToRaw(to);
  const int index = static_cast<int>(::if_nametoindex(interface.c_str()));
  if (!raw || index == 0) return false;
  const bool v4 = raw->family() == AF_INET;
  rtmsg request = RouteRequest(raw->family());
  request.rtm_dst_len = v4 ? 32 : 128;
  request.rtm_flags = RTM_F_FIB_MATCH;
  std::vector<std::byte> body = BodyOf(request);
  const auto storage = std::as_bytes(std::span(&raw->storage, 1));
  AppendAttribute(&body, RTA_DST,
                  v4 ? storage.subspan(offsetof(sockaddr_in, sin_addr), 4)
                     : storage.subspan(offsetof(sockaddr_in6, sin6_addr), 16));
  AppendAttribute(&body, RTA_OIF, BytesOf(index));
  const auto route = AskRoute(body);
  // An entry with several next hops matches by one that has this interface.
  return route && (InterfaceIn(*route) == index || AttributeIn(*route, RTA_MULTIPATH));
}

}  // namespace ferry::net
