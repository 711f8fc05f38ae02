// Asks rtnetlink for the route of a socket and the device behind its interface.
#include "ferry/net/egress.h"

#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "ferry/net/netlink.h"
#include "ferry/net/socket_owner.h"

namespace ferry::net {
namespace {

// IFLA_PARENT_DEV_NAME, which older headers lack.
constexpr std::uint16_t kParentDevice = 56;

// The interface through which packets between the two addresses leave; 0 if they stay here.
int EgressOf(const SocketEnds& ends) {
  const bool v4 = ends.family == AF_INET;
  rtmsg request{};
  request.rtm_family = static_cast<unsigned char>(ends.family);
  request.rtm_dst_len = request.rtm_src_len = v4 ? 32 : 128;
  std::vector<std::byte> body(NetlinkAligned(sizeof request));
  std::memcpy(body.data(), &request, sizeof request);
  const std::size_t bytes = v4 ? 4 : 16;
  AppendAttribute(&body, RTA_DST, std::as_bytes(std::span(ends.remote.address)).first(bytes));
  AppendAttribute(&body, RTA_SRC, std::as_bytes(std::span(ends.local.address)).first(bytes));
  const auto answer = AskKernel(NETLINK_ROUTE, RTM_GETROUTE, body, RTM_NEWROUTE);
  if (!answer || answer->size() < sizeof request) return 0;
  std::memcpy(&request, answer->data(), sizeof request);
  const auto attributes = std::span<const std::byte>(*answer).subspan(sizeof request);
  const auto interface = AttributeIn(attributes, RTA_OIF);
  int index = 0;
  if (request.rtm_type != RTN_UNICAST || !interface || interface->size() != sizeof index) return 0;
  std::memcpy(&index, interface->data(), sizeof index);
  return index;
}

bool HasDevice(int interface) {
  ifinfomsg request{};
  request.ifi_index = interface;
  const auto answer =
      AskKernel(NETLINK_ROUTE, RTM_GETLINK, std::as_bytes(std::span(&request, 1)), RTM_NEWLINK);
  if (!answer || answer->size() < sizeof request) return false;
  return AttributeIn(std::span<const std::byte>(*answer).subspan(sizeof request), kParentDevice)
      .has_value();
}

}  // namespace

bool LeavesThroughDevice(int socket) {
  const auto ends = EndsOf(socket);
  const int interface = ends ? EgressOf(*ends) : 0;
  return interface != 0 && HasDevice(interface);
}

}  // namespace ferry::net
